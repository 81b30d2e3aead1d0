//! Which relays to run and which path each flow takes, within a budget.
