from sdk.backends.base import *
