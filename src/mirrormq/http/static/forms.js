// Forms, questions and short notices. Native elements: the keyboard and screen readers work as everywhere.

import { h, newId, put } from "./dom.js";

/** A line that says what happened, read out politely, gone after a while. Errors stay until closed. */
export function notice(text, kind = "good") {
  const box = document.getElementById("notices");
  const line = h(
    "div",
    { class: `notice ${kind}` },
    h("span", {}, text),
    h("button", { type: "button", "aria-label": "Close this notice", onclick: () => line.remove() }, "×"),
  );
  box.append(line);
  if (kind === "good") setTimeout(() => line.remove(), 6000);
  while (box.children.length > 4) box.firstChild.remove();
}

/** Run something that may be refused; true if it was done. */
export async function attempt(work, done) {
  try {
    const value = await work();
    if (done) notice(typeof done === "function" ? done(value) : done);
    return true;
  } catch (error) {
    notice(error.message || String(error), "bad");
    return false;
  }
}

/** Ask before something that cannot be undone. Resolves to true or false. */
export function confirmed(title, text, verb) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { class: "ask", "aria-labelledby": "ask-title" },
      h("h2", { id: "ask-title" }, title),
      h("p", {}, text),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, verb),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * fields: [{name, label, kind, value, options, hint, required}], a kind being text, password, number, select,
 * check, area or pairs;
 * `submit(values)` may throw; resets afterwards if `reset`.
 */
export function form(fields, verb, submit, options = {}) {
  const parts = fields.map((field) => part(field));
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: options.danger ? "danger" : "main" }, verb);
  const element = h(
    "form",
    { class: "form", novalidate: true, "aria-label": options.label ?? verb },
    parts.map((found) => found.element),
    problem,
    h("div", { class: "buttons" }, button, options.extra),
  );
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    button.disabled = true;
    try {
      const values = {};
      for (const found of parts) values[found.name] = found.read();
      await submit(values);
      if (options.reset !== false) for (const found of parts) found.reset();
    } catch (error) {
      problem.textContent = error.message || String(error);
      problem.hidden = false;
    }
    button.disabled = false;
  });
  element.fields = Object.fromEntries(parts.map((found) => [found.name, found]));
  return element;
}

function part(field) {
  if (field.kind === "pairs") return pairsPart(field);
  const id = newId("field");
  const hint = field.hint ? newId("hint") : undefined;
  const common = { id, name: field.name, "aria-describedby": hint, required: field.required };
  let input;
  if (field.kind === "select") {
    input = h(
      "select",
      common,
      field.options.map((option) => {
        const [value, label] = Array.isArray(option) ? option : [option, option];
        return h("option", { value, selected: value === field.value }, label);
      }),
    );
  } else if (field.kind === "area") {
    input = h("textarea", { ...common, rows: field.rows ?? 4, spellcheck: "false" });
    input.value = field.value ?? "";
  } else if (field.kind === "check") {
    input = h("input", { ...common, type: "checkbox", checked: field.value });
  } else {
    input = h("input", {
      ...common,
      type: field.kind ?? "text",
      value: field.value ?? "",
      min: field.min,
      max: field.max,
      list: field.list,
      autocomplete: field.autocomplete ?? "off",
      spellcheck: "false",
    });
  }
  const label = h("label", { for: id, class: field.required ? "needed" : undefined }, field.label);
  const note = hint ? h("small", { id: hint }, field.hint) : null;
  return {
    name: field.name,
    input,
    element: h("div", { class: field.kind === "check" ? "field check" : "field" }, label, input, note),
    read: () => read(field, input),
    set: (value) => {
      if (field.kind === "check") input.checked = value;
      else input.value = value ?? "";
    },
    reset: () => {
      if (field.kind === "check") input.checked = Boolean(field.value);
      else if (field.kind !== "select") input.value = field.value ?? "";
    },
  };
}

function read(field, input) {
  if (field.kind === "check") return input.checked;
  const text = field.kind === "area" || field.kind === "password" ? input.value : input.value.trim();
  if (field.required && !text) {
    input.focus();
    throw new Error(`${field.label}: a value is needed`);
  }
  if (field.kind === "number") return text === "" ? undefined : Number(text);
  return text;
}

/** Keys and values, one pair per line of inputs; a last empty line is always there. */
function pairsPart(field) {
  const box = h("div", { class: "pairs" });
  const id = newId("pairs");

  function line(key = "", value = "") {
    const type = h(
      "select",
      { "aria-label": `${field.label}: type` },
      ["String", "Number", "Boolean", "List"].map((name) =>
        h("option", { selected: name === kindOf(value) }, name),
      ),
    );
    const row = h(
      "div",
      { class: "pair" },
      h("input", {
        "aria-label": `${field.label}: key`,
        value: key,
        placeholder: "key",
        list: field.keys,
        spellcheck: "false",
      }),
      h("span", { "aria-hidden": "true" }, "="),
      h("input", {
        "aria-label": `${field.label}: value`,
        value: show(value),
        placeholder: "value",
        spellcheck: "false",
      }),
      type,
    );
    row.firstChild.addEventListener("input", () => {
      if (row === box.lastElementChild && row.firstChild.value) box.append(line());
      const wanted = field.kinds?.[row.firstChild.value];
      if (wanted) type.value = wanted;
    });
    return row;
  }

  function fill(map) {
    put(
      box,
      Object.entries(map ?? {}).map(([key, value]) => line(key, value)),
      line(),
    );
  }

  fill(field.value);
  const note = field.hint ? h("small", {}, field.hint) : null;
  return {
    name: field.name,
    element: h(
      "div",
      { class: "field", role: "group", "aria-labelledby": id },
      h("span", { id, class: "label" }, field.label),
      box,
      note,
    ),
    read: () => readPairs(field, box),
    set: fill,
    reset: () => fill(field.value),
  };
}

function readPairs(field, box) {
  const found = {};
  for (const row of box.children) {
    const key = row.children[0].value.trim();
    if (key)
      found[key] = convert(row.children[2].value.trim(), row.children[3].value, `${field.label}: ${key}`);
  }
  if (field.required && !Object.keys(found).length) throw new Error(`${field.label}: a value is needed`);
  return found;
}

function convert(text, kind, what) {
  if (kind === "Number") {
    if (text === "" || Number.isNaN(Number(text))) throw new Error(`${what} must be a number`);
    return Number(text);
  }
  if (kind === "Boolean") {
    if (text !== "true" && text !== "false") throw new Error(`${what} must be true or false`);
    return text === "true";
  }
  if (kind === "List") return text ? text.split(",").map((item) => item.trim()) : [];
  return text;
}

function kindOf(value) {
  if (typeof value === "number") return "Number";
  if (typeof value === "boolean") return "Boolean";
  return Array.isArray(value) ? "List" : "String";
}

function show(value) {
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** A button that does one thing, and is not there for who may not do it. */
export function action(label, work, properties = {}) {
  const button = h(
    "button",
    {
      type: "button",
      ...properties,
      onclick: async () => {
        button.disabled = true;
        await work();
        button.disabled = Boolean(properties.disabled);
      },
    },
    label,
  );
  return button;
}

/** What stands where a control would stand if the user might use it. */
export function readOnly(what, who) {
  return h("p", { class: "read-only" }, `${what} needs the tag ${who}. You are logged in to look.`);
}
