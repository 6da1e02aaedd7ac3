"""For those who test their own backends against the seams of podlift."""
