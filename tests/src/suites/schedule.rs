//! Which suite starts next, and which may run side by side. Pure: it counts slots, and starts nothing.

use super::manifest::Suite;

/// Suites that wait for their turn, and the slots that running ones take.
#[derive(Debug)]
pub struct Schedule<'a> {
    waiting: Vec<&'a Suite>,
    slots: u64,
    used: u64,
    /// A suite without slots runs. The next one waits for it, because several of them together would need a processor.
    is_beside: bool,
    is_alone: bool,
}

impl<'a> Schedule<'a> {
    /// Suites with the largest budget come first, so that no long one is left for the end. Suites that run alone come last.
    #[must_use]
    pub fn new(suites: Vec<&'a Suite>, slots: u64) -> Self {
        let mut waiting = suites;
        // A stable sort: suites with equal budgets keep the order of the file.
        waiting.sort_by_key(|suite| (suite.alone, std::cmp::Reverse(suite.budget())));
        Self { waiting, slots: slots.max(1), used: 0, is_beside: false, is_alone: false }
    }

    /// The next suite that may start beside those that run; it counts as running from now on.
    pub fn start(&mut self) -> Option<&'a Suite> {
        let at = self.waiting.iter().position(|suite| self.fits(suite))?;
        let suite = self.waiting.remove(at);
        self.used += self.takes(suite);
        self.is_alone = suite.alone;
        self.is_beside |= is_beside(suite);
        Some(suite)
    }

    fn fits(&self, suite: &Suite) -> bool {
        let free = self.slots.saturating_sub(self.used);
        !self.is_alone && self.takes(suite) <= free && !(self.is_beside && (suite.alone || is_beside(suite)))
    }

    /// A suite that `start` returned has ended.
    pub fn ended(&mut self, suite: &Suite) {
        self.used = self.used.saturating_sub(self.takes(suite));
        self.is_alone &= !suite.alone;
        self.is_beside &= !is_beside(suite);
    }

    /// Starts nothing more.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Whether nothing runs and nothing waits.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.used == 0 && !self.is_beside
    }

    /// A suite that runs alone takes all slots.
    fn takes(&self, suite: &Suite) -> u64 {
        if suite.alone { self.slots } else { suite.slots.min(self.slots) }
    }
}

/// A suite that mostly waits takes no slot.
fn is_beside(suite: &Suite) -> bool {
    suite.slots == 0 && !suite.alone
}

#[cfg(test)]
mod tests {
    use super::super::manifest;
    use super::*;

    fn suites(text: &[(&str, u64, &str)]) -> Vec<Suite> {
        let section = |(name, budget_s, more): &(&str, u64, &str)| {
            format!(
                "[[suite]]\nname = \"{name}\"\ntier = \"fast\"\ncommand = [\"true\"]\nminimum = 1\n\
                 budget_s = {budget_s}\ndeadline_s = 900\ncovers = \"x\"\n{more}\n"
            )
        };
        manifest::parse(&text.iter().map(section).collect::<String>()).unwrap().suites
    }

    fn started<'a>(schedule: &mut Schedule<'a>) -> Vec<&'a str> {
        std::iter::from_fn(|| schedule.start()).map(|suite| suite.name.as_str()).collect()
    }

    #[test]
    fn the_longest_start_first_and_the_rest_when_a_slot_is_free() {
        let suites = suites(&[("short", 1, ""), ("long", 90, ""), ("middle", 9, "")]);
        let mut schedule = Schedule::new(suites.iter().collect(), 2);
        assert_eq!(started(&mut schedule), ["long", "middle"]);
        schedule.ended(&suites[2]);
        assert_eq!(started(&mut schedule), ["short"]);
        assert!(!schedule.is_over());
        schedule.ended(&suites[0]);
        schedule.ended(&suites[1]);
        assert!(schedule.is_over());
    }

    #[test]
    fn a_suite_that_runs_alone_waits_for_the_others_and_nothing_starts_beside_it() {
        let suites = suites(&[("timing", 90, "alone = true"), ("a", 5, ""), ("b", 4, "alone = true")]);
        let mut schedule = Schedule::new(suites.iter().collect(), 4);
        assert_eq!(started(&mut schedule), ["a"]);
        schedule.ended(&suites[1]);
        assert_eq!(started(&mut schedule), ["timing"]);
        schedule.ended(&suites[0]);
        assert_eq!(started(&mut schedule), ["b"]);
    }

    #[test]
    fn a_heavy_suite_takes_several_slots_and_at_most_all() {
        let suites = suites(&[("heavy", 90, "slots = 9"), ("a", 5, "slots = 2"), ("b", 4, "")]);
        let mut schedule = Schedule::new(suites.iter().collect(), 3);
        assert_eq!(started(&mut schedule), ["heavy"]);
        schedule.ended(&suites[0]);
        assert_eq!(started(&mut schedule), ["a", "b"]);
    }

    #[test]
    fn suites_that_mostly_wait_run_beside_full_slots_one_at_a_time_and_never_beside_one_that_is_alone() {
        let suites = suites(&[
            ("busy", 90, ""),
            ("waits", 80, "slots = 0"),
            ("waits-too", 70, "slots = 0"),
            ("timing", 60, "alone = true"),
        ]);
        let mut schedule = Schedule::new(suites.iter().collect(), 1);
        assert_eq!(started(&mut schedule), ["busy", "waits"]);
        schedule.ended(&suites[0]);
        assert_eq!(started(&mut schedule), Vec::<&str>::new(), "one of them runs");
        schedule.ended(&suites[1]);
        assert_eq!(started(&mut schedule), ["waits-too"]);
        assert!(!schedule.is_over());
        schedule.ended(&suites[2]);
        assert_eq!(started(&mut schedule), ["timing"]);
        schedule.ended(&suites[3]);
        assert!(schedule.is_over());
        let mut schedule = Schedule::new(vec![&suites[3], &suites[1]], 1);
        assert_eq!(started(&mut schedule), ["waits"]);
    }

    #[test]
    fn what_does_not_fit_lets_smaller_ones_pass() {
        let suites = suites(&[("a", 9, ""), ("wide", 8, "slots = 2"), ("c", 1, "")]);
        let mut schedule = Schedule::new(suites.iter().collect(), 2);
        assert_eq!(started(&mut schedule), ["a", "c"]);
        schedule.clear();
        assert_eq!(started(&mut schedule), Vec::<&str>::new());
    }
}
