"""Who did what: every act of a person, a token, or a rule, in the transaction of its effect."""
