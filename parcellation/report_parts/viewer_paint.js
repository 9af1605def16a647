// Painting with WebGL 2. A triangle knows the labels of its three corners, so that borders run through it where
// interpolated probabilities are equal, as in the still pictures.

const VERTEX = `#version 300 es
uniform mat3 turn; uniform vec3 focus; uniform vec2 scale; uniform float depth;
layout(location=0) in vec3 point; layout(location=1) in vec3 normal; layout(location=2) in float grey;
layout(location=3) in float inside; layout(location=4) in vec4 value;
layout(location=5) in vec3 first; layout(location=6) in vec3 second; layout(location=7) in vec3 third;
out vec3 vNormal; out float vGrey; out float vInside; out vec4 vValue;
flat out vec3 c0; flat out vec3 c1; flat out vec3 c2;
void main() {
  vec3 seen = turn * (point - focus);
  gl_Position = vec4(seen.xy * scale, -seen.z * depth, 1.0);
  vNormal = turn * normal; vGrey = grey; vInside = inside; vValue = value;
  c0 = first; c1 = second; c2 = third;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform int mode; uniform float chance; uniform float stripes; uniform sampler2D ramp;
in vec3 vNormal; in float vGrey; in float vInside; in vec4 vValue;
flat in vec3 c0; flat in vec3 c1; flat in vec3 c2;
out vec4 colour;
const vec3 INK = vec3(0.13, 0.13, 0.15);
float slope(float value) { return max(length(vec2(dFdx(value), dFdy(value))), 1e-6); }
bool same(vec3 one, vec3 other) { return distance(one, other) < 0.004; }
float border(float distant, vec3 one, vec3 other, vec3 third, float least, float rest) {
  if (same(one, other)) return 0.0;
  if (!same(one, third) && !same(other, third) && least < rest - 1e-4) return 0.0;
  return 1.0 - smoothstep(0.5, 1.3, distant);
}
void main() {
  vec3 n = normalize(vNormal);
  float facing = clamp(n.z, 0.0, 1.0), matte = clamp(dot(n, normalize(vec3(-0.35, 0.45, 1.0))), 0.0, 1.0);
  float light = (0.52 + 0.50 * matte) * (0.74 + 0.26 * pow(facing, 0.6));
  vec3 shown = vec3(vGrey * light);
  vec4 value = vValue / max(vInside, 1e-4);
  // In pixels: how far it is to where two corners' labels are equally probable, and to the rim of the region.
  vec3 gap = vec3(value.x - value.y, value.y - value.z, value.z - value.x);
  vec3 distant = abs(gap) / vec3(slope(gap.x), slope(gap.y), slope(gap.z));
  float rim = abs(vInside - 0.5) / slope(vInside);
  if (vInside > 0.5) {
    vec3 paint; float opacity = 1.0, line = 0.0;
    if (mode == 0) {
      float best = max(value.x, max(value.y, value.z));
      paint = value.x >= best ? c0 : (value.y >= best ? c1 : c2);
      opacity = clamp((best - chance) / (1.0 - chance), 0.0, 1.0);
      line = max(border(distant.x, c0, c1, c2, min(value.x, value.y), value.z),
             max(border(distant.y, c1, c2, c0, min(value.y, value.z), value.x),
                 border(distant.z, c2, c0, c1, min(value.z, value.x), value.y)));
    } else {
      paint = texture(ramp, vec2(clamp(value.x, 0.0, 1.0) * 255.0 / 256.0 + 0.5 / 256.0, 0.5)).rgb;
    }
    if (value.w > 0.5 && mod(floor((gl_FragCoord.x + gl_FragCoord.y) / stripes), 2.0) < 0.5) {
      paint = vec3(0.25); opacity = 0.8;
    }
    shown = mix(vec3(${BLANK}), paint, opacity) * (1.0 + ${RELIEF} * (light - 1.0));
    shown = mix(shown, INK, line);
  }
  shown = mix(INK, shown, vInside > 0.0 ? smoothstep(0.8, 1.5, rim) : 1.0);
  colour = vec4(shown, 1.0);
}`;

// Drawing: the bare cortex by its indices, and the triangles that touch the region one by one, for their values.
function Painter(gl) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  gl.useProgram(program);
  gl.enable(gl.DEPTH_TEST);
  gl.clearColor(1, 1, 1, 1);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.LINEAR);
  for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
  const place = (name) => gl.getUniformLocation(program, name);

  function attribute(buffers, location, values, size, type, scaled) {
    buffers[location] = buffers[location] || gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers[location]);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, size, type || gl.FLOAT, Boolean(scaled), 0, 0);
  }

  this.load = function (one) {
    const bare = [], corners = [];
    for (let t = 0; t < one.triangles.length; t += 3) {
      const three = [one.triangles[t], one.triangles[t + 1], one.triangles[t + 2]];
      (three.some((v) => one.row[v] >= 0) ? corners : bare).push(three[0], three[1], three[2]);
    }
    one.corners = corners;
    one.bare = bare.length;
    one.bareArray = gl.createVertexArray();
    gl.bindVertexArray(one.bareArray);
    const own = [];
    attribute(own, 0, one.points, 3);
    attribute(own, 1, one.normals, 3);
    attribute(own, 2, one.grey, 1, gl.UNSIGNED_BYTE, true);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, new Uint32Array(bare), gl.STATIC_DRAW);
    one.regionArray = gl.createVertexArray();
    one.buffers = [];
    gl.bindVertexArray(one.regionArray);
    const spread = (values, size) => {
      const out = new values.constructor(corners.length * size);
      corners.forEach((v, at) => { for (let i = 0; i < size; i++) out[size * at + i] = values[size * v + i]; });
      return out;
    };
    attribute(one.buffers, 0, spread(one.points, 3), 3);
    attribute(one.buffers, 1, spread(one.normals, 3), 3);
    attribute(one.buffers, 2, spread(one.grey, 1), 1, gl.UNSIGNED_BYTE, true);
    attribute(one.buffers, 3, Float32Array.from(corners, (v) => (one.row[v] >= 0 ? 1 : 0)), 1);
  };

  this.paint = function (one, who, map) {
    const corners = one.corners, value = new Float32Array(corners.length * 4), tint = [0, 1, 2].map(() =>
      new Uint8Array(corners.length * 3));
    for (let t = 0; t < corners.length; t += 3) {
      const rows = [0, 1, 2].map((i) => one.row[corners[t + i]]);
      const labels = map.at ? null : rows.map((row) => (row < 0 ? -1 : label(who, row)));
      for (let i = 0; i < 3; i++) {
        const to = t + i, row = rows[i];
        for (let j = 0; labels && j < 3; j++) {
          const candidate = labels[j] < 0 ? -1 : labels[j];
          tint[j].set(candidate < 0 ? [214, 214, 214] : colours[candidate], 3 * to);
          if (row >= 0 && candidate >= 0) value[4 * to + j] = probability(who, row, candidate);
        }
        if (map.at && row >= 0) value[4 * to] = map.at(row);
        if (who.missing && row >= 0) value[4 * to + 3] = who.missing[row];
      }
    }
    gl.bindVertexArray(one.regionArray);
    attribute(one.buffers, 4, value, 4);
    tint.forEach((values, j) => attribute(one.buffers, 5 + j, values, 3, gl.UNSIGNED_BYTE, true));
    const ramp = new Uint8Array(256 * 4);
    rampOf(map).forEach((colour, at) => ramp.set([...colour, 255], 4 * at));
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, ramp);
    gl.uniform1i(place("mode"), map.at ? 1 : 0);
    gl.uniform1f(place("chance"), 1 / K);
  };

  this.draw = function (one, view, wide, high, density) {
    gl.viewport(0, 0, wide, high);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const zoom = view.zoom * fit(one, wide, high);
    gl.uniformMatrix3fv(place("turn"), true, view.turn.flat());
    gl.uniform3fv(place("focus"), view.focus);
    gl.uniform2f(place("scale"), (2 * zoom) / wide, (2 * zoom) / high);
    gl.uniform1f(place("depth"), 1 / 500);
    gl.uniform1f(place("stripes"), 4 * density);
    gl.bindVertexArray(one.bareArray);
    gl.vertexAttrib1f(3, 0);
    gl.drawElements(gl.TRIANGLES, one.bare, gl.UNSIGNED_INT, 0);
    gl.bindVertexArray(one.regionArray);
    gl.drawArrays(gl.TRIANGLES, 0, one.corners.length);
  };
}

const viridis = unpack(data.viridis, Uint8Array);

function rampOf(map) {
  return Array.from({ length: 256 }, (_, at) => {
    if (map.ramp === undefined) return [0, 1, 2].map((i) => viridis[3 * at + i]);
    return colours[map.ramp].map((end) => Math.round(255 * BLANK + (end - 255 * BLANK) * (at / 255)));
  });
}
