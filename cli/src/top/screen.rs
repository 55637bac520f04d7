//! Draws what [`View`] knows, into a terminal's buffer or as lines of plain text. It decides what a narrow terminal shows, and
//! nothing else.

use super::sheet::{Alarm, Row, Tab, sort};
use super::view::View;
use crate::status::words::{bytes, clean, duration, id, names, number, phase, rate};
use daemon::status::{ClusterStatus, JobPhase, MemberStatus};
use proto_common::ids::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Sparkline, Widget as _};
use std::time::{Duration, Instant};

/// A single look that fails is no news.
const MISSED: Duration = Duration::from_millis(2_500);
/// Rows of a terminal below which the line of rounds per second is left out.
const ROOMY: u16 = 18;
/// Rows of that line.
const PACE_ROWS: u16 = 2;
/// Columns between two cells.
const GAP: usize = 2;
/// A last cell is cut to no less than this.
const CUT_MIN: usize = 12;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);

/// One frame.
pub(super) fn draw(view: &mut View, area: Rect, buffer: &mut Buffer, now: Instant) {
    let width = usize::from(area.width);
    let mut y = area.y;
    let bottom = area.bottom();
    let put = |line: &Line<'_>, y: &mut u16, buffer: &mut Buffer| {
        if *y < bottom {
            buffer.set_line(area.x, *y, line, area.width);
            *y += 1;
        }
    };
    for line in head(view, width, now) {
        put(&line, &mut y, buffer);
    }
    if area.height >= ROOMY {
        let points = view.pace.iter().copied();
        let points: Vec<u64> = points.skip(view.pace.len().saturating_sub(width)).collect();
        let place = Rect { x: area.x, y, width: area.width, height: PACE_ROWS };
        Sparkline::default()
            .data(&points)
            .style(Style::new().fg(Color::Blue))
            .render(place.intersection(area), buffer);
        y += PACE_ROWS;
    }
    put(&tabs(view), &mut y, buffer);
    let (title, rows) = table(view, view.tab, width);
    put(&title, &mut y, buffer);
    view.fits = usize::from(bottom.saturating_sub(y + 1)).max(1);
    view.first = view.first.min(rows.len().saturating_sub(view.fits));
    for row in rows.iter().skip(view.first).take(view.fits) {
        put(row, &mut y, buffer);
    }
    let last = area.bottom().saturating_sub(1);
    if last >= area.y {
        buffer.set_line(area.x, last, &foot(view, rows.len()), area.width);
    }
}

/// Everything, one table below the other.
pub(super) fn whole(view: &View, width: usize, now: Instant) -> Vec<Line<'static>> {
    let mut lines = head(view, width, now);
    for tab in Tab::ALL {
        let (title, rows) = table(view, tab, width);
        lines.push(Line::default());
        lines.push(Line::from(tab.title()));
        lines.push(title);
        lines.extend(rows);
    }
    lines
}

fn head(view: &View, width: usize, now: Instant) -> Vec<Line<'static>> {
    let Some(status) = &view.status else { return vec![Line::from("connecting to the scheduler")] };
    let name = format!("job {}  {}", status.job, phase(status.phase));
    let more = format!("  epoch {}  up {}", status.epoch, duration(status.uptime_ms));
    let mut lines =
        vec![Line::from(vec![Span::styled(name, BOLD), Span::raw(more)]), Line::from(numbers(status))];
    let silent = now.saturating_duration_since(view.answered);
    if let Some(failure) = view.failure.as_ref().filter(|_| silent > MISSED) {
        let ended = matches!(status.phase, JobPhase::Ending | JobPhase::Ended);
        let why = if ended { "the job was ending" } else { failure.as_str() };
        let since = duration(silent.as_millis() as u64);
        lines.push(warning(
            Color::Red,
            format!("NO ANSWER for {since}, showing the last known state: {}", clean(why)),
        ));
    }
    if let Some(ending) = &status.ending {
        lines.push(warning(Color::Yellow, format!("ending: {}", clean(ending))));
    }
    if !status.missing.is_empty() {
        lines.push(warning(Color::Yellow, format!("waiting for {}", names(&status.missing))));
    }
    lines.extend(stragglers(status));
    lines.push(Line::from(oldest(status)));
    lines.extend(beside(status).map(Line::from));
    lines.into_iter().flat_map(|line| folded(line, width)).collect()
}

/// A line that is too long goes on below; of one that is very long the end is cut.
fn folded(line: Line<'static>, width: usize) -> Vec<Line<'static>> {
    const LINES_MAX: usize = 3;
    if line.width() <= width || width == 0 {
        return vec![line];
    }
    let style = line.spans.first().map(|span| span.style).unwrap_or_default();
    let text = line.to_string();
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().map(|last| (Span::raw(last.as_str()).width(), last));
        let Some((used, last)) = last else { break };
        let is_first = used == 0;
        if is_first || used + 1 + Span::raw(word).width() <= width {
            if !is_first {
                last.push(' ');
            }
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.truncate(LINES_MAX);
    lines.into_iter().map(|text| Line::from(Span::styled(text, style))).collect()
}

fn warning(color: Color, text: String) -> Line<'static> {
    Line::from(Span::styled(text, Style::new().fg(color).add_modifier(Modifier::BOLD)))
}

fn working(status: &ClusterStatus) -> impl Iterator<Item = &MemberStatus> {
    status.members.iter().filter(|member| member.role == Role::Worker && !member.left)
}

/// The figures that matter most.
fn numbers(status: &ClusterStatus) -> String {
    let rounds = || working(status).map(|member| member.round);
    let mut words = Vec::new();
    if let (Some(first), Some(last)) = (rounds().max(), rounds().min()) {
        words.push(if first == last {
            format!("round {first}")
        } else {
            format!("rounds {last} to {first}")
        });
    }
    words.push(format!("{} rounds/s", rate(status.rounds_per_second)));
    let metrics = || working(status).flat_map(|member| &member.metrics);
    let chosen = metrics().map(|metric| &metric.name).min_by_key(|name| (*name != "loss", *name));
    if let Some(name) = chosen {
        let values: Vec<f64> = metrics().filter(|metric| metric.name == *name).map(|m| m.value).collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        words.push(format!("{} {}", clean(name), number(mean)));
    }
    let moved = working(status).flat_map(|member| &member.links);
    let moved = moved.fold(0u64, |sum, link| sum.saturating_add(link.bytes_per_second));
    words.push(format!("{}/s moved", bytes(moved)));
    words.push(format!("{} tensors, {}", status.tensors, bytes(status.tensor_bytes)));
    words.join("  ")
}

fn stragglers(status: &ClusterStatus) -> Option<Line<'static>> {
    let one = |late: &daemon::status::StragglerStatus| match late.behind {
        0 => format!("worker {} (waited for in {} % of samples)", late.worker, late.waited_for_percent),
        behind => format!("worker {} ({behind} rounds behind)", late.worker),
    };
    let all: Vec<String> = status.stragglers.iter().map(one).collect();
    (!all.is_empty()).then(|| warning(Color::Yellow, format!("stragglers: {}", all.join(", "))))
}

fn oldest(status: &ClusterStatus) -> String {
    let there = status.members.iter().filter(|member| !member.left);
    let waits = there.filter_map(|member| Some((member, member.oldest.as_ref()?)));
    match waits.max_by_key(|(_, oldest)| oldest.waited_ms) {
        Some((member, oldest)) => {
            let waited = duration(oldest.waited_ms);
            format!("oldest wait: {waited} at {}: {}", id(member), clean(&oldest.what))
        }
        None => "oldest wait: none".into(),
    }
}

/// Copies and checkpoints, where there are some.
fn beside(status: &ClusterStatus) -> Option<String> {
    let (recovery, checkpoints) = (&status.recovery, &status.checkpoints);
    let mut words = Vec::new();
    if recovery.copied_bytes > 0 || status.uncopied_chunks > 0 {
        let lacking = match status.uncopied_chunks {
            0 => String::new(),
            chunks => format!(", {chunks} chunks without a replica"),
        };
        words.push(format!("replicas: {} up to date{lacking}", bytes(recovery.copied_bytes)));
    }
    if recovery.lost > 0 {
        words.push(format!("members lost: {}", recovery.lost));
    }
    words.extend(checkpoints.newest.as_ref().map(|name| format!("newest checkpoint: {}", clean(name))));
    words.extend(checkpoints.writing.map(|round| {
        format!("writing round {round}: {} of {} parts", checkpoints.parts, checkpoints.parts_expected)
    }));
    words.extend(checkpoints.failure.as_ref().map(|why| format!("last checkpoint failed: {}", clean(why))));
    (!words.is_empty()).then(|| words.join("; "))
}

fn tabs(view: &View) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, tab) in (1..).zip(Tab::ALL) {
        let is_shown = tab == view.tab;
        let style = if is_shown { BOLD.add_modifier(Modifier::REVERSED) } else { SOFT };
        spans.push(Span::styled(format!(" {number} {} ", tab.title()), style));
    }
    Line::from(spans)
}

fn foot(view: &View, rows: usize) -> Line<'static> {
    let last = (view.first + view.fits).min(rows);
    let place = if rows > view.fits {
        format!("rows {} to {last} of {rows}  ", view.first + 1)
    } else {
        String::new()
    };
    let keys = "q quit  Tab table  ↑↓ scroll  s sort  r reverse";
    Line::from(vec![Span::raw(place), Span::styled(keys, SOFT)])
}

/// Titles and rows, with the columns that fit.
fn table(view: &View, tab: Tab, width: usize) -> (Line<'static>, Vec<Line<'static>>) {
    let mut rows = view.status.as_ref().map(|status| tab.rows(status)).unwrap_or_default();
    if rows.is_empty() {
        return (Line::from(Span::styled(tab.nothing(), SOFT)), Vec::new());
    }
    let order = view.order(tab);
    sort(&mut rows, order);
    let titles: Vec<String> = tab
        .columns()
        .iter()
        .enumerate()
        .map(|(at, title)| match at == order.column {
            true => format!("{title}{}", if order.is_reversed { "▼" } else { "▲" }),
            false => (*title).to_owned(),
        })
        .collect();
    let widths = fitting(&titles, &rows, width);
    let title: Vec<Span<'_>> = titles.iter().zip(&widths).map(|(title, width)| cell(title, *width)).collect();
    let line = |row: &Row| {
        let cells = row.cells.iter().zip(&widths).map(|(c, width)| cell(&c.text, *width));
        Line::from(cells.collect::<Vec<_>>()).style(match row.alarm {
            Alarm::None => Style::new(),
            Alarm::Slow => Style::new().fg(Color::Yellow),
            Alarm::Silent => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        })
    };
    (Line::from(title).style(BOLD), rows.iter().map(line).collect())
}

fn cell(text: &str, width: usize) -> Span<'static> {
    let mut shown = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = Span::raw(c.to_string()).width();
        if used + wide > width {
            break;
        }
        shown.push(c);
        used += wide;
    }
    shown.extend(std::iter::repeat_n(' ', width - used + GAP));
    Span::raw(shown)
}

/// Widths of the columns that fit, the last one cut.
fn fitting(titles: &[String], rows: &[Row], width: usize) -> Vec<usize> {
    let natural = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| Span::raw(&cell.text).width());
        cells.chain(titles.get(at).map(|title| Span::raw(title).width())).max().unwrap_or(0)
    };
    let (mut widths, mut left) = (Vec::new(), width);
    for at in 0..titles.len() {
        let wanted = natural(at);
        let fits = wanted.min(left);
        if at > 0 && fits < wanted && fits < CUT_MIN {
            break;
        }
        widths.push(fits);
        left = left.saturating_sub(fits + GAP);
    }
    widths
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
