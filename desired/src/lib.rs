//! What each relay and gateway should run: route tables compiled from a plan.
