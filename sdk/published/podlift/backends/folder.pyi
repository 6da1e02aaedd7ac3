from sdk.backends.folder import *
