// Forms of /docs that send requests to this server. Texts become text nodes and values, never HTML.
"use strict";
const LONGEST = 200000; // characters of an answer that are shown
const element = (name, properties, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const key = element("input", { type: "password", autocomplete: "off", placeholder: "none" });

function address(path, fields) {
  const query = new URLSearchParams();
  let found = path;
  for (const [name, where, box] of fields) {
    if (where === "path") found = found.replace("{" + name + "}", encodeURIComponent(box.value));
    else if (box.value) query.set(name, box.value);
  }
  return found + (String(query) ? "?" + query : "");
}

async function send(place, fields, body, shown, signal) {
  const { method, path } = place.dataset;
  const headers = key.value ? { Authorization: "Bearer " + key.value } : {};
  if (body) headers["Content-Type"] = "application/json";
  const begun = performance.now();
  const options = { method, headers, signal, cache: "no-store", credentials: "omit" };
  if (body) options.body = body.value;
  const answer = await fetch(address(path, fields), options);
  const line = () => answer.status + " " + answer.statusText + ", " + Math.round(performance.now() - begun) + " ms\n\n";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    text += value;
    shown.textContent = line() + text.slice(0, LONGEST);
    if (text.length > LONGEST) {
      shown.textContent += "\n… the rest is not shown";
      await reader.cancel();
      return;
    }
  }
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* not one JSON value */ }
  shown.textContent = line() + text;
}

function form(place) {
  const fields = JSON.parse(place.dataset.fields).map(([name, where]) => [name, where, element("input", { required: where === "path" })]);
  const given = place.dataset.body;
  const body = given === undefined ? null : element("textarea", { rows: Math.min(16, given.split("\n").length + 1), value: given, spellcheck: false });
  const button = element("button", { textContent: "Send" });
  const shown = element("pre", { tabIndex: 0 });
  shown.setAttribute("role", "status");
  const found = element("form", {}, ...fields.map(([name, , box]) => element("label", {}, name + " ", box)));
  if (body) found.append(element("label", {}, "body ", body));
  found.append(button, shown);
  let running = null;
  found.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) {
      running.abort();
      return;
    }
    running = new AbortController();
    button.textContent = "Stop";
    shown.textContent = "…";
    try {
      await send(place, fields, body, shown, running.signal);
    } catch (error) {
      shown.textContent += "\n" + (error.name === "AbortError" ? "stopped" : error.message);
    }
    running = null;
    button.textContent = "Send";
  });
  return found;
}

for (const place of document.querySelectorAll(".try")) {
  const opened = element("details", {}, element("summary", { textContent: "Try" }));
  opened.addEventListener("toggle", () => {
    if (opened.children.length === 1) opened.append(form(place));
  });
  place.append(opened);
}
document.querySelector("#key").append(element("label", {}, "Key for requests of this page: ", key));
