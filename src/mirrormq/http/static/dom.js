// Elements without a framework. Text is always set as text: nothing that a client named can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("a", {href, onclick, "aria-label"}, child, ...). Children: nodes, texts, lists, nothing. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace everything inside. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Replace what is inside only if it would look different: focus and selection stay where they are. */
export function putChanged(element, ...children) {
  const draft = element.cloneNode(false);
  append(draft, children);
  if (!draft.isEqualNode(element)) element.replaceChildren(...draft.childNodes);
  return element;
}

/** Set a text only if it changed. */
export function say(element, text) {
  const wanted = text === undefined || text === null ? "" : String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
  return element;
}

/** A definition list of facts: [[label, value], ...]; entries without a value are left out. */
export function facts(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows
      .filter(([, value]) => value !== undefined && value !== null && value !== "")
      .map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))),
  );
}

/** A part of a page with a heading, which can be folded away. */
export function section(title, properties, ...children) {
  const { open = true, id, extra } = properties ?? {};
  return h(
    "details",
    { class: "section", open, id },
    h("summary", {}, h("h2", {}, title), extra),
    h("div", { class: "section-body" }, children),
  );
}

let ids = 0;

/** A new id for an element. */
export function newId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}
