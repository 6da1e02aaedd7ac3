from sdk.testing import *
