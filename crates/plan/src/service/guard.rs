//! Whether a stronger service helps, or harms what it is to protect.
//!
//! Copies share the sender's uplink with the packets themselves. Where that is short they make the queue that packets wait and get lost in, the
//! more of them the stronger the service. So each step up is judged by what receivers report: where more is missed after it than before, it is
//! taken back, and for some intervals it is seen whether that was why. If less is missed then, the flow stays for a while, twice as long each
//! time; if not, the path has become worse by itself, and the stronger service is taken again.

use tradewind_model::packet::PacketService;

/// Intervals after a step up until it is judged. Chosen: two may still hold what was sent before, and a queue takes some to fill.
const JUDGED_AFTER: u32 = 5;
/// Intervals after one was taken back until it is seen whether that helped. Chosen: a queue has drained by then.
const PROBED_AFTER: u32 = 3;
/// By how much more must be missed to count as more. Chosen: what chance does in five intervals of some hundred packets.
const MARGIN: f64 = 0.005;
/// Intervals for which no step up follows one that did harm, at first and at most.
const HELD_FOR: u32 = 60;
const MOST_HELD_FOR: u32 = HELD_FOR << 5;
/// Intervals for which steps up are not judged since the path had become worse by itself.
const TRUSTED_FOR: u32 = 120;

/// What was missed since the service changed, and in the last two intervals, which a step up follows.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    all: [f64; 2],
    last: [[f64; 2]; 2],
    intervals: u32,
}

impl Tally {
    fn add(&mut self, expected: f64, missed: f64) {
        self.all = [self.all[0] + expected, self.all[1] + missed];
        self.last = [self.last[1], [expected, missed]];
        self.intervals += 1;
    }

    fn share(&self) -> f64 {
        share(self.all)
    }

    fn share_of_last(&self) -> f64 {
        let [before, last] = self.last;
        share([before[0] + last[0], before[1] + last[1]])
    }
}

fn share([expected, missed]: [f64; 2]) -> f64 {
    if expected > 0.0 { missed / expected } else { 0.0 }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Free,
    /// A stronger service runs; with the one before so much was missed.
    Judging {
        before: PacketService,
        missed: f64,
    },
    /// It was taken back, since so much was missed with it.
    Probing {
        stronger: PacketService,
        missed: f64,
    },
    Holding {
        left: u32,
    },
    Trusting {
        left: u32,
    },
}

/// Judges steps to stronger services.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    state: State,
    /// Since the service changed.
    tally: Tally,
    hold: u32,
}

impl Guard {
    pub(super) fn new() -> Self {
        Self { state: State::Free, tally: Tally::default(), hold: HELD_FOR }
    }

    /// Takes an interval; the service that is to run instead, if this says that another must.
    pub(super) fn observe(
        &mut self,
        running: PacketService,
        (expected, missed): (f64, f64),
    ) -> Option<PacketService> {
        self.tally.add(expected, missed);
        let (share, intervals) = (self.tally.share(), self.tally.intervals);
        match self.state {
            State::Free => None,
            State::Judging { before, missed } if intervals >= JUDGED_AFTER => {
                if share <= missed + MARGIN {
                    self.state = State::Free;
                    return None;
                }
                self.state = State::Probing { stronger: running, missed: share };
                Some(before)
            }
            State::Probing { stronger, missed } if intervals >= PROBED_AFTER => {
                if share + MARGIN < missed {
                    self.state = State::Holding { left: self.hold };
                    self.hold = (self.hold * 2).min(MOST_HELD_FOR);
                    return None;
                }
                self.state = State::Trusting { left: TRUSTED_FOR };
                Some(stronger)
            }
            State::Judging { .. } | State::Probing { .. } => None,
            State::Holding { left } | State::Trusting { left } => {
                let left = left.saturating_sub(1);
                self.state = match self.state {
                    _ if left == 0 => State::Free,
                    State::Holding { .. } => State::Holding { left },
                    _ => State::Trusting { left },
                };
                None
            }
        }
    }

    /// Whether a stronger service may be taken now.
    pub(super) fn allows(&self) -> bool {
        match self.state {
            State::Free | State::Trusting { .. } => true,
            State::Judging { missed, .. } => self.tally.share() <= missed + MARGIN,
            State::Probing { .. } | State::Holding { .. } => false,
        }
    }

    /// The same where the service that runs has become too slow for the budget: what is held back may be the better one by now.
    pub(super) fn allows_faster(&self) -> bool {
        matches!(self.state, State::Holding { .. }) || self.allows()
    }

    /// The service changes, to a stronger one or not.
    pub(super) fn note_change(&mut self, before: PacketService, is_stronger: bool) {
        let missed = self.tally.share_of_last();
        self.tally = Tally::default();
        self.state = match self.state {
            State::Free | State::Holding { .. } if is_stronger => State::Judging { before, missed },
            // What began the climb is what its end is compared with.
            state @ (State::Judging { .. } | State::Probing { .. }) if is_stronger => state,
            State::Judging { .. } => State::Free,
            state => state,
        };
    }
}
