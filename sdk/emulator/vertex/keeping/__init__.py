"""What runs the replicas of one emulated job, in a small process of its own.

`keeper` starts and ends them, `root` is what they see. It imports nothing of podlift, since it is started by its folder, once
for every job.
"""
