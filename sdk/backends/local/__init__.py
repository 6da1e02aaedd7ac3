"""The backend called "local". Supervisors and uploaders start without the client side of it, which is in `backend`."""
