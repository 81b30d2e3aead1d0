//! A round's average of the windows towards one destination `[RT III-B, Algorithm 1]`.
//!
//! "The average of all current windows", or the variants that the paper names: the maximum, "the
//! most the link is capable of handling", for aggressive starts; the mean weighted "by the amount
//! of traffic that has passed through the link" for careful ones.

use crate::config::Combine;

/// A value with the traffic behind it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weighted {
    count: u32,
    sum: f64,
    greatest: f64,
    traffic: f64,
    traffic_sum: f64,
}

impl Weighted {
    /// Adds `value` of a connection that has carried `bytes`.
    pub fn add(&mut self, value: f64, bytes: f64) {
        self.count += 1;
        self.sum += value;
        self.greatest = self.greatest.max(value);
        self.traffic += bytes;
        self.traffic_sum += bytes * value;
    }

    /// Returns the number of values added.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Combines the values into one; `None` without any. Without traffic there are no weights, and
    /// the mean is used.
    #[must_use]
    pub fn combined(&self, by: Combine) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let mean = self.sum / f64::from(self.count);
        Some(match by {
            Combine::Mean => mean,
            Combine::Maximum => self.greatest,
            Combine::Traffic if self.traffic > 0.0 => self.traffic_sum / self.traffic,
            Combine::Traffic => mean,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn papers_three_averages() {
        let mut windows = Weighted::default();
        assert_eq!(windows.combined(Combine::Mean), None);
        // [RT Fig. 7]: the mean of what is open becomes the window of what opens.
        for (window, bytes) in [(60.0, 1e6), (80.0, 1e6), (100.0, 8e6)] {
            windows.add(window, bytes);
        }
        assert_eq!(windows.combined(Combine::Mean), Some(80.0));
        assert_eq!(windows.combined(Combine::Maximum), Some(100.0));
        assert_eq!(windows.combined(Combine::Traffic), Some(94.0));
    }

    #[test]
    fn without_traffic_there_are_no_weights() {
        let mut windows = Weighted::default();
        windows.add(10.0, 0.0);
        windows.add(30.0, 0.0);
        assert_eq!(windows.combined(Combine::Traffic), Some(20.0));
    }
}
