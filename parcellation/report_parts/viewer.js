// How the interactive surface is turned, read and switched: by pointer, by keys and by the buttons beside it.

// Views: a turntable with the head up. Pixels per mm at zoom 1 show the whole hemisphere from the side.
function fit(one, wide, high) { return Math.min(wide / one.size[1], high / one.size[2]) * 0.96; }

function turned(azimuth, elevation) {
  const [ca, sa, ce, se] = [Math.cos(azimuth), Math.sin(azimuth), Math.cos(elevation), Math.sin(elevation)];
  const towards = [ce * ca, ce * sa, se];
  return [[-sa, ca, 0], [-se * ca, -se * sa, ce], towards];
}

function prepare(one) {
  const low = [1e9, 1e9, 1e9], high = [-1e9, -1e9, -1e9];
  for (let at = 0; at < one.points.length; at++) {
    low[at % 3] = Math.min(low[at % 3], one.points[at]);
    high[at % 3] = Math.max(high[at % 3], one.points[at]);
  }
  one.size = [0, 1, 2].map((i) => high[i] - low[i]);
  one.middle = [0, 1, 2].map((i) => (high[i] + low[i]) / 2);
}

function closeUp(one) {
  const towards = one.camera[2], azimuth = Math.atan2(towards[1], towards[0]), elevation = Math.asin(towards[2]);
  const turn = turned(azimuth, elevation), low = [1e9, 1e9, 1e9], high = [-1e9, -1e9, -1e9];
  one.vertex.forEach((v) => turn.forEach((axis, i) => {
    const place = axis.reduce((sum, x, j) => sum + x * one.points[3 * v + j], 0);
    low[i] = Math.min(low[i], place);
    high[i] = Math.max(high[i], place);
  }));
  const middle = [0, 1, 2].map((i) => (low[i] + high[i]) / 2);
  const focus = [0, 1, 2].map((j) => turn.reduce((sum, axis, i) => sum + axis[j] * middle[i], 0));
  const [wide, tall] = size();
  const zoom = Math.min(wide / (high[0] - low[0]), tall / (high[1] - low[1])) / 1.5 / fit(one, wide, tall);
  return { azimuth, elevation, focus, zoom: Math.max(FARTHEST, Math.min(NEAREST, zoom)) };
}

function whole(one, medial) {
  const side = (one.name === "left") !== medial ? -1 : 1;
  return { azimuth: side < 0 ? Math.PI : 0, elevation: 0, focus: one.middle.slice(), zoom: 1 };
}

const size = () => [canvas.clientWidth || 1, canvas.clientHeight || 1];
const sides = data.hemispheres.map(mesh);
sides.forEach(prepare);
const state = { side: 0, person: 0, map: "labels", view: null, place: null, seen: null };
let painter = null, pending = false;

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  const density = Math.min(window.devicePixelRatio || 1, 2), [wide, high] = size().map((one) => Math.round(one * density));
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  state.view.turn = turned(state.view.azimuth, state.view.elevation);
  painter.draw(sides[state.side], state.view, wide, high, density);
  const forward = state.view.turn[0][1];
  find("left").textContent = Math.abs(forward) < 0.4 ? "" : forward > 0 ? "← posterior" : "← anterior";
  find("right").textContent = Math.abs(forward) < 0.4 ? "" : forward > 0 ? "anterior →" : "posterior →";
  state.seen = null;
  root.dataset.drawn = [people[state.person].name, state.map, sides[state.side].name].join("|");
  place();
}

function change(what) {
  Object.assign(state, what);
  const who = person(state.person);
  if (!mapOf(who, state.map)) state.map = "labels";
  const map = mapOf(who, state.map);
  painter.paint(sides[state.side], who, map);
  controls(who, map);
  describe();
  redraw();
}

// Which vertex lies at a place of the picture: the nearest corner of the front triangle there; -1 beside the cortex.
function pick(x, y) {
  const one = sides[state.side], view = state.view, [wide, high] = size(), zoom = view.zoom * fit(one, wide, high);
  if (!state.seen) {
    state.seen = new Float32Array(one.count * 3);
    for (let v = 0; v < one.count; v++) {
      const at = [0, 1, 2].map((i) => one.points[3 * v + i] - view.focus[i]);
      for (let i = 0; i < 3; i++) {
        const axis = view.turn[i], along = axis[0] * at[0] + axis[1] * at[1] + axis[2] * at[2];
        state.seen[3 * v + i] = i === 0 ? wide / 2 + along * zoom : i === 1 ? high / 2 - along * zoom : along;
      }
    }
  }
  const seen = state.seen, triangles = one.triangles;
  let nearest = -Infinity, found = -1;
  for (let t = 0; t < triangles.length; t += 3) {
    const [a, b, c] = [3 * triangles[t], 3 * triangles[t + 1], 3 * triangles[t + 2]];
    const depth = seen[a + 2] + seen[b + 2] + seen[c + 2];
    if (depth <= nearest) continue;
    const area = (seen[b] - seen[a]) * (seen[c + 1] - seen[a + 1]) - (seen[b + 1] - seen[a + 1]) * (seen[c] - seen[a]);
    const u = ((seen[b] - x) * (seen[c + 1] - y) - (seen[b + 1] - y) * (seen[c] - x)) / area;
    const v = ((seen[c] - x) * (seen[a + 1] - y) - (seen[c + 1] - y) * (seen[a] - x)) / area;
    if (!(u >= 0 && v >= 0 && u + v <= 1)) continue;
    nearest = depth;
    const shares = [u, v, 1 - u - v];
    found = triangles[t + shares.indexOf(Math.max(...shares))];
  }
  return found;
}

function place() {
  const at = state.place === null ? -1 : pick(state.place[0], state.place[1]);
  state.vertex = at;
  mark.hidden = at < 0;
  if (at >= 0) {
    mark.style.left = state.seen[3 * at] + "px";
    mark.style.top = state.seen[3 * at + 1] + "px";
  }
  describe();
}

function element(kind, text, classes) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

function describe() {
  const one = sides[state.side], at = state.vertex === undefined ? -1 : state.vertex, who = person(state.person);
  readout.replaceChildren();
  if (at < 0) {
    readout.append(element("p", "Point at the surface to read a vertex.", "faint"));
    return;
  }
  readout.append(element("p", "Vertex " + at + ", " + one.name + " hemisphere", "vertex"));
  const row = one.row[at];
  if (row < 0) {
    readout.append(element("p", "Outside the region.", "faint"));
    return;
  }
  const shares = data.networks.map((network, k) => [probability(who, row, k), k]);
  shares.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const list = element("ul");
  for (const [share, k] of shares.slice(0, 4)) {
    const line = element("li"), bar = element("span", "", "share");
    bar.style.width = 100 * share + "%";
    bar.style.background = data.networks[k].colour;
    line.append(element("span", data.networks[k].name, "name"), element("span", share.toFixed(3), "number"), bar);
    list.append(line);
  }
  readout.append(list, element("p", "entropy " + (who.entropy[row] / 65535 * Math.log2(K)).toFixed(2) + " bits"));
  for (const map of who.maps) {
    const value = map.low + (map.high - map.low) * map.values[row] / 65535;
    readout.append(element("p", map.name + " " + value.toFixed(2)));
  }
  if (who.missing && who.missing[row]) readout.append(element("p", "No data here: the population's answer.", "flag"));
}

function controls(who, map) {
  root.querySelectorAll("[data-map]").forEach((button) => {
    button.setAttribute("aria-pressed", String(button.dataset.map === map.key));
    button.disabled = !mapOf(who, button.dataset.map);
  });
  root.querySelectorAll("[data-side]").forEach((button) =>
    button.setAttribute("aria-pressed", String(Number(button.dataset.side) === state.side)));
  const chooser = find("person");
  if (chooser) chooser.value = String(state.person);
  find("bar").hidden = !map.at;
  find("certainty").hidden = Boolean(map.at);
  if (map.at) {
    find("bar-name").textContent = map.name;
    find("bar-low").textContent = map.low.toFixed(map.low % 1 ? 2 : 0);
    find("bar-high").textContent = map.high.toFixed(map.high % 1 ? 2 : 0);
    const stops = rampOf(map).filter((_, at) => at % 17 === 0).map((one) => "rgb(" + one.join(",") + ")");
    find("bar-ramp").style.background = "linear-gradient(to right," + stops.join(",") + ")";
  }
  find("shown").textContent = people[state.person].name + ": " + map.name;
}

function look(view) { state.view = Object.assign({}, view); redraw(); }

function zoom(by) { state.view.zoom = Math.max(FARTHEST, Math.min(NEAREST, state.view.zoom * by)); redraw(); }

function rotate(right, up) {
  state.view.azimuth += right;
  state.view.elevation = Math.max(-1.5, Math.min(1.5, state.view.elevation + up));
  redraw();
}

function start() { look(sides[state.side].whole ? whole(sides[state.side], false) : closeUp(sides[state.side])); }

function listen() {
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = [event.clientX, event.clientY];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    state.place = [event.clientX - box.left, event.clientY - box.top];
    if (held) {
      rotate(-(event.clientX - held[0]) * TURN, (event.clientY - held[1]) * TURN);
      held = [event.clientX, event.clientY];
    } else if (state.view.turn) place();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
  canvas.addEventListener("pointerleave", () => { if (!held) { state.place = null; place(); } });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015));
  }, { passive: false });
  const keys = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys[event.key]) rotate(keys[event.key][0] * KEY_TURN, keys[event.key][1] * KEY_TURN);
    else if (event.key === "+" || event.key === "=") zoom(CLOSER);
    else if (event.key === "-") zoom(1 / CLOSER);
    else if (event.key === "0") start();
    else return;
    event.preventDefault();
    state.place = size().map((one) => one / 2);
    draw();
    spoken.textContent = readout.textContent;
  });
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { map, side, view, zoom: by } = button.dataset;
    if (map) change({ map });
    if (side) { change({ side: Number(side) }); start(); }
    if (view === "close") look(closeUp(sides[state.side]));
    if (view === "lateral" || view === "medial") look(whole(sides[state.side], view === "medial"));
    if (by) zoom(by === "in" ? CLOSER : 1 / CLOSER);
    if (button.dataset.save) save();
  });
  const chooser = find("person");
  if (chooser) chooser.addEventListener("change", () => change({ person: Number(chooser.value) }));
  document.querySelectorAll("a[data-person]").forEach((link) =>
    link.addEventListener("click", () => change({ person: Number(link.dataset.person) })));
  new ResizeObserver(redraw).observe(canvas);
  canvas.addEventListener("webglcontextlost", () => document.body.classList.remove("live"));
}

function save() {
  draw();
  const link = element("a");
  link.href = canvas.toDataURL("image/png");
  link.download = (people[state.person].name + "_" + state.map + ".png").replace(/[^A-Za-z0-9_.-]+/g, "-");
  link.click();
}

try {
  const gl = canvas.getContext("webgl2", { alpha: false, antialias: true, preserveDrawingBuffer: true });
  if (!gl) throw new Error("no WebGL 2");
  painter = new Painter(gl);
  sides.forEach((one) => painter.load(one));
  document.body.classList.add("live");
  start();
  change({});
  listen();
} catch (error) {
  document.body.classList.remove("live");
  root.dataset.failed = String(error.message || error);
}
