from sdk.preflight import *
