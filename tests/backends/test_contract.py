from sdk.testing.backend import BackendContract


class TestLocal(BackendContract):
    name = "local"
