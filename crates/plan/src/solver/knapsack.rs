//! A lower bound on the sum of completion times when each flow takes one option within a budget.
//!
//! The linear relaxation of the multiple-choice knapsack problem: each flow's options are reduced
//! to the convex hull of cost and time, and the budget buys the steepest steps first, the last one
//! in part. No choice within the budget is better [Kellerer, Pferschy, Pisinger: Knapsack Problems,
//! 11.2].

/// The efficient options of one flow: the cheapest one, and steps of decreasing worth.
#[derive(Debug, Clone)]
pub(super) struct Menu {
    cost: f64,
    fct: f64,
    steps: Vec<Step>,
}

/// A step to the next option: it costs `cost` more and saves `saves` seconds.
#[derive(Debug, Clone, Copy)]
struct Step {
    cost: f64,
    saves: f64,
}

impl Step {
    fn worth(self) -> f64 {
        self.saves / self.cost
    }
}

impl Menu {
    /// Returns the hull of options given as cost and completion time; `None` when there are none.
    pub(super) fn new(options: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut options: Vec<(f64, f64)> = options.into_iter().collect();
        options.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let &(cost, fct) = options.first()?;
        let mut steps: Vec<Step> = Vec::new();
        let mut last = (cost, fct);
        for (cost, fct) in options {
            // In this order an option is slower than a cheaper one, or faster and more expensive.
            if fct >= last.1 {
                continue;
            }
            let mut step = Step { cost: cost - last.0, saves: last.1 - fct };
            while let Some(before) = steps.pop_if(|before| before.worth() <= step.worth()) {
                step = Step { cost: step.cost + before.cost, saves: step.saves + before.saves };
            }
            steps.push(step);
            last = (cost, fct);
        }
        Some(Self { cost, fct, steps })
    }
}

/// Returns a lower bound on the time of all choices of one option from each menu that cost at most
/// `budget`; `None` when even the cheapest options cost more.
pub(super) fn bound<'a>(menus: impl Iterator<Item = &'a Menu>, budget: f64) -> Option<f64> {
    let mut left = budget;
    let mut total = 0.0;
    let mut steps: Vec<Step> = Vec::new();
    for menu in menus {
        left -= menu.cost;
        total += menu.fct;
        steps.extend(&menu.steps);
    }
    // The sums are floating-point dollars: allow for rounding of a nano-dollar.
    if left < -1e-9 {
        return None;
    }
    steps.sort_unstable_by(|a, b| b.worth().total_cmp(&a.worth()));
    for step in steps {
        if step.cost > left {
            return Some(total - left.max(0.0) * step.worth());
        }
        left -= step.cost;
        total -= step.saves;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_buys_the_steepest_steps_first() {
        let a = Menu::new([(0.0, 100.0), (1.0, 50.0), (2.0, 45.0), (0.5, 95.0)]).unwrap();
        let b = Menu::new([(0.0, 10.0), (1.0, 4.0)]).unwrap();
        let at = |budget| bound([&a, &b].into_iter(), budget);
        assert_eq!(at(0.0), Some(110.0));
        assert_eq!(at(1.0), Some(60.0));
        assert_eq!(at(1.5), Some(57.0));
        assert_eq!(at(9.0), Some(49.0));
        assert_eq!(at(-0.1), None);
    }

    #[test]
    fn of_two_options_of_one_cost_the_faster_counts() {
        let menu = Menu::new([(1.0, 9.0), (1.0, 7.0), (1.0, 8.0)]).unwrap();
        assert_eq!(bound([&menu].into_iter(), 1.0), Some(7.0));
        assert!(Menu::new([]).is_none());
    }
}
