from sdk.backends import *
