from sdk.records import *
