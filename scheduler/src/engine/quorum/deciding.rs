//! Decisions on their way into force: proposals, elections, and the end of a scheduler that no majority hears.

use super::super::command::{Command, Outcome, let_go, send, send_to};
use super::super::member::ConnectionId;
use super::super::{Engine, Note, Phase};
use super::{Election, Proposed, Quorum, named};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Incarnation, MemberId, Role};
use proto_common::message::FromScheduler;
use std::collections::BTreeSet;
