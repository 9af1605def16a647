// The interactive surface of the report: one hemisphere, turned by dragging, painted with the maps of one person.
// Everything it shows is in the page, as base64 typed arrays; nothing is loaded. Where WebGL 2 is missing or fails,
// the still picture of the page stays. The light, the blending and the borders are those of the still pictures.
const root = document.getElementById("viewer");
const BLANK = 0.84, RELIEF = 0.3, TURN = 0.008, KEY_TURN = 0.17, CLOSER = 1.25, NEAREST = 24, FARTHEST = 0.7;
const data = JSON.parse(document.getElementById("viewer-data").textContent);
const find = (name) => root.querySelector('[data-part="' + name + '"]');
const canvas = find("canvas"), mark = find("mark"), readout = find("readout"), spoken = find("spoken");
const K = data.networks.length;

function unpack(text, Type) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return new Type(bytes.buffer);
}

function rgb(code) { return [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16)); }

const colours = data.networks.map((one) => rgb(one.colour));

// Mesh: points in mm around the hemisphere's middle, outward normals, and for each vertex its row of the maps or -1.
function mesh(side) {
  const packed = unpack(side.points, Int16Array), points = new Float32Array(packed.length);
  for (let at = 0; at < packed.length; at++) points[at] = packed[at] * side.unit;
  const count = points.length / 3, triangles = unpack(side.triangles, count > 65536 ? Uint32Array : Uint16Array);
  const row = new Int32Array(count).fill(-1), vertex = unpack(side.vertices, Uint32Array);
  const rows = unpack(side.rows, Uint32Array);
  vertex.forEach((number, at) => { row[number] = rows[at]; });
  return { name: side.name, points, triangles, row, count, vertex, camera: side.camera,
           normals: normals(points, triangles), grey: unpack(side.grey, Uint8Array), whole: side.whole };
}

function normals(points, triangles) {
  const sum = new Float32Array(points.length);
  for (let t = 0; t < triangles.length; t += 3) {
    const [a, b, c] = [3 * triangles[t], 3 * triangles[t + 1], 3 * triangles[t + 2]];
    const u = [0, 1, 2].map((i) => points[b + i] - points[a + i]), v = [0, 1, 2].map((i) => points[c + i] - points[a + i]);
    const cross = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
    for (const at of [a, b, c]) for (let i = 0; i < 3; i++) sum[at + i] += cross[i];
  }
  let outward = 0;
  for (let at = 0; at < sum.length; at += 3) {
    const length = Math.hypot(sum[at], sum[at + 1], sum[at + 2]) || 1;
    for (let i = 0; i < 3; i++) { sum[at + i] /= length; outward += sum[at + i] * points[at + i]; }
  }
  if (outward < 0) for (let at = 0; at < sum.length; at++) sum[at] = -sum[at];
  return sum;
}

// A person's maps. Probabilities come as the M most probable networks of each vertex; M is K for few networks.
const people = data.people.map((one) => ({ name: one.name, packed: one }));

function person(at) {
  const one = people[at];
  if (!one.p) {
    one.p = unpack(one.packed.p, Uint16Array);
    one.which = one.packed.which ? unpack(one.packed.which, Uint16Array) : null;
    one.entropy = unpack(one.packed.entropy, Uint16Array);
    one.missing = one.packed.missing ? unpack(one.packed.missing, Uint8Array) : null;
    one.most = one.p.length / one.entropy.length;
    one.maps = (one.packed.maps || []).map((map) => Object.assign({}, map, { values: unpack(map.values, Uint16Array) }));
  }
  return one;
}

function probability(one, row, network) {
  const from = row * one.most;
  if (!one.which) return one.p[from + network] / 65535;
  for (let at = from; at < from + one.most; at++) if (one.which[at] === network) return one.p[at] / 65535;
  return 0;
}

function label(one, row) {
  const from = row * one.most;
  let best = from;
  for (let at = from + 1; at < from + one.most; at++) if (one.p[at] > one.p[best]) best = at;
  return one.which ? one.which[best] : best - from;
}

// A map: its name, unit, ends of the colour bar and, for a row, its place between them.
function mapOf(one, key) {
  const bits = Math.log2(K);
  if (key === "labels") return { key, name: "networks", text: "Opacity is certainty" };
  if (key === "entropy") {
    return { key, name: "entropy (bits)", low: 0, high: bits, at: (row) => one.entropy[row] / 65535 };
  }
  if (key === "confidence") {
    const chance = 1 / K;
    const at = (row) => (probability(one, row, label(one, row)) - chance) / (1 - chance);
    return { key, name: "probability of the label", low: chance, high: 1, at };
  }
  if (key.startsWith("network-")) {
    const network = Number(key.slice(8));
    const name = "probability of " + data.networks[network].name;
    return { key, name, low: 0, high: 1, ramp: network, at: (row) => probability(one, row, network) };
  }
  const map = one.maps.find((other) => other.key === key);
  return map && { key, name: map.name, low: map.low, high: map.high, at: (row) => map.values[row] / 65535 };
}
