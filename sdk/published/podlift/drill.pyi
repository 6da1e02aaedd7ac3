from sdk.drill import *
