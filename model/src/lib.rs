//! Regions, prices and the papers' formulas: rate, completion time and cost of a path.
