from sdk.testing.tasks import *
