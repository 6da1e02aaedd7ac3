"""What podlift costs, measured beside what a user would do instead. Run: scripts/bench"""
