//! Tests of overlap: what is called when, with and without it, and that time is charged to the layer it was spent on.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::data::{Dataset, Shape, csv};
use crate::layers::Layers;
use crate::mlp::Mlp;
use crate::reference::Reference;
use proto_common::optimizer::Optimizer;

/// What the trainer asked for, in order: `compute` is the first touch of a gradient, `read` that of weights.
type Calls = Rc<RefCell<Vec<String>>>;

/// The reference for one worker, which notes what it is asked for.
struct Recorder {
    inner: Reference,
    calls: Calls,
    /// How long each `finish` takes.
    delay: Duration,
}

impl Recorder {
    fn note(&self, what: &str, i: usize) {
        let mut calls = self.calls.borrow_mut();
        let call = format!("{what} {i}");
        if calls.last() != Some(&call) {
            calls.push(call);
        }
    }
}

impl Exchange for Recorder {
    fn rank(&self) -> u32 {
        0
    }
    fn workers(&self) -> u32 {
        1
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn init(&mut self, tensors: &[NamedTensor], how: &How) -> anyhow::Result<u64> {
        self.inner.init(tensors, how)
    }
    fn weights(&self, i: usize) -> &[f32] {
        self.note("read", i);
        self.inner.weights(i)
    }
    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        self.note("compute", i);
        self.inner.gradient_mut(i)
    }
    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        self.note("start", i);
        self.inner.start(i)
    }
    fn finish(&mut self, i: usize) -> anyhow::Result<()> {
        self.note("finish", i);
        // Sleep: what is measured is time that passes while nothing happens.
        std::thread::sleep(self.delay);
        self.inner.finish(i)
    }
    fn leave(self: Box<Self>) -> anyhow::Result<()> {
        Ok(())
    }
    fn transport(&self) -> String {
        "recorder".into()
    }
}

struct Rig {
    mlp: Mlp,
    data: Dataset,
    exchange: Overlapped,
    calls: Calls,
}

impl Rig {
    /// Two layers of weights.
    fn new(mode: Overlap, delay: Duration) -> Self {
        let layers: Layers = "2,3,2".parse().unwrap();
        let shape = Shape { features: 2, classes: 2 };
        let path = std::path::Path::new("t");
        let data = csv::read(path, &b"0.1,0.2,0\n0.3,0.1,1\n"[..], shape, &csv::Options::default()).unwrap();
        let calls = Calls::default();
        let recorder = Recorder { inner: Reference::new(1), calls: calls.clone(), delay };
        let mut exchange = Overlapped::new(Box::new(recorder), mode, None);
        let optimizer = Optimizer::sgd(0.1, 0.9, 0.0);
        exchange.init(&layers.initial(1), &How::by(optimizer)).unwrap();
        Self { mlp: Mlp::new(&layers, 2), data, exchange, calls }
    }

    /// One step; what was asked for in it.
    fn step(&mut self) -> Vec<String> {
        self.calls.borrow_mut().clear();
        self.mlp.step(&self.data, [0, 1].into_iter(), &mut self.exchange).unwrap();
        self.calls.take()
    }
}

/// The forward pass waits for a layer when it needs it.
const FORWARD: [&str; 8] =
    ["finish 0", "finish 1", "read 0", "read 1", "finish 2", "finish 3", "read 2", "read 3"];

#[test]
fn with_overlap_a_gradient_goes_out_before_the_next_one_is_computed() {
    let mut rig = Rig::new(Overlap::On, Duration::ZERO);
    for _ in 0..2 {
        let calls = rig.step();
        assert_eq!(calls[..8], FORWARD);
        let backward = ["compute 2", "compute 3", "read 2", "start 2", "start 3"];
        assert_eq!(calls[8..13], backward, "the last layer's is under way");
        assert_eq!(
            calls[13..],
            ["compute 0", "compute 1", "start 0", "start 1"],
            "before the first layer's is computed"
        );
    }
}

#[test]
fn without_overlap_all_is_computed_then_all_is_exchanged() {
    let mut rig = Rig::new(Overlap::Off, Duration::ZERO);
    for _ in 0..2 {
        let calls = rig.step();
        assert_eq!(calls[..8], FORWARD);
        assert_eq!(calls[8..13], ["compute 2", "compute 3", "read 2", "compute 0", "compute 1"]);
        assert_eq!(calls[13..17], ["start 0", "start 1", "start 2", "start 3"]);
        assert_eq!(calls[17..], ["finish 0", "finish 1", "finish 2", "finish 3"]);
    }
}

#[test]
fn alternating_epochs_leave_nothing_under_way_for_the_next() {
    let mut rig = Rig::new(Overlap::Alternate, Duration::ZERO);
    let on = rig.step();
    assert_eq!(on[11..13], ["start 2", "start 3"]);
    rig.calls.borrow_mut().clear();
    assert!(rig.exchange.end_epoch().unwrap().0);
    assert_eq!(rig.calls.take(), ["finish 0", "finish 1", "finish 2", "finish 3"]);
    assert_eq!(rig.step()[13], "start 0");
    assert!(!rig.exchange.end_epoch().unwrap().0);
    assert_eq!(rig.step(), on);
}

#[test]
fn waiting_is_charged_to_its_layer_and_to_its_epoch() {
    let delay = Duration::from_millis(2);
    let mut rig = Rig::new(Overlap::On, delay);
    rig.step();
    let (overlapped, spent) = rig.exchange.end_epoch().unwrap();
    assert!(overlapped);
    assert_eq!(spent.waiting.len(), 2);
    // A weight and a bias each.
    assert!(spent.waiting.iter().all(|waiting| *waiting >= 2 * delay), "{spent:?}");
    let (_, spent) = rig.exchange.end_epoch().unwrap();
    assert_eq!(spent, Spent { waiting: vec![Duration::ZERO; 2], ..Spent::default() });
}
