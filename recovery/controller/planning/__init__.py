"""From what a coordinator knows to the input of the planner, and back."""
