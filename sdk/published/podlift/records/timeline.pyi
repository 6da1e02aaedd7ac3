from sdk.records.timeline import *
