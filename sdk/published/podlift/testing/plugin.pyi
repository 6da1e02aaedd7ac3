from sdk.testing.plugin import *
