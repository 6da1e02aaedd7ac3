from sdk.backends.triggers import *
