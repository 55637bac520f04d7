// Numbers as people read them, and names of members. Text from numbers; it touches no document.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => WHOLE.format(value);

/** Decimal units, as links are sold. */
export function bytes(value) {
  let unit = 0;
  while (value >= 999.95 && unit + 1 < UNITS.length) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(value)} B` : `${value.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(ms) {
  const [seconds, minutes] = [Math.floor(ms / 1e3), Math.floor(ms / 6e4)];
  if (ms < 1e3) return `${Math.round(ms)} ms`;
  if (ms < 6e4) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (ms < 36e5) return `${minutes} min ${seconds % 60} s`;
  return `${count(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

/** A rate of things that are counted: 0.25, 3.2, 812. */
export function rate(value) {
  if (value === 0) return "0";
  if (value < 1) return value.toFixed(2);
  return value < 100 ? value.toFixed(1) : count(value);
}

/** A number of somebody else's, of any size. */
export function number(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export const percent = (part, whole) => (whole > 0 ? Math.round((100 * part) / whole) : 0);

export const name = (member) => `${member.role.toLowerCase()} ${member.rank}`;

/** The first few of a list, and how many more there are. */
export function names(list, most = 8) {
  const more = list.length > most ? ` and ${count(list.length - most)} more` : "";
  return list.slice(0, most).join(", ") + more;
}
