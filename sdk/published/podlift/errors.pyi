from sdk.errors import *
