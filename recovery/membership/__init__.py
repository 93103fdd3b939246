"""Who is in the job: nodes and ranks, and the election of a coordinator."""
