"""What is asked inside a page, in a world of our own there: its scripts can neither see nor change these.

Each is a JavaScript function; what it gives must be plain data, and is a stranger's word.
"""

MOST_ELEMENTS = 200

_FIND = """
  const find = (ref, selector) => {
    const kept = ref ? (globalThis.refs || [])[ref - 1] : null;
    const el = ref ? kept && kept.deref() : document.querySelector(selector);
    if (!el || !el.isConnected) throw new Error("ABSENT");
    return el;
  };
"""

READ = """(form, selector, limit, most) => {
  const root = selector ? document.querySelector(selector) : (document.body || document.documentElement);
  if (!root) return selector ? {absent: true} : {text: "", length: 0, elements: [], more: 0};
  let text = form === "html" ? (selector ? root : document.documentElement).outerHTML
                             : (root.innerText ?? root.textContent ?? "");
  const length = text.length;
  if (length > limit) text = text.slice(0, limit);
  const clip = (value) => String(value ?? "").replace(/\\s+/g, " ").trim().slice(0, 120);
  const wanted = 'a[href],button,input,select,textarea,summary,iframe,[role=button],[role=link],[role=checkbox],'
    + '[role=radio],[role=tab],[role=menuitem],[role=option],[contenteditable=""],[contenteditable=true]';
  // an element keeps its number as long as the page is there
  const refs = globalThis.refs ??= [], numbers = globalThis.numbers ??= new WeakMap(), elements = [];
  const numbered = (el) => {
    if (!numbers.has(el)) numbers.set(el, refs.push(new WeakRef(el)));
    return numbers.get(el);
  };
  let more = 0;
  for (const el of root.querySelectorAll(wanted)) {
    if (el.type === "hidden" || el.getClientRects().length === 0) continue;
    if (elements.length === most) { more++; continue; }
    const tag = el.localName, secret = el.type === "password";
    const kind = {a: "link", summary: "button", textarea: "text", iframe: "frame"}[tag]
      || (tag === "input" ? (el.type || "text") : el.getAttribute("role") || (el.isContentEditable ? "text" : tag));
    const label = el.labels && el.labels.length ? el.labels[0].innerText : "";
    const own = tag === "select" || tag === "input" || tag === "textarea" ? "" : el.innerText;
    const button = tag === "input" && ["submit", "button", "reset"].includes(el.type) ? el.value : "";
    const name = clip(el.getAttribute("aria-label") || label || own || button || el.placeholder || el.title || el.alt
      || el.name || (el.querySelector && el.querySelector("img") && el.querySelector("img").alt));
    const value = secret || button ? "" : ["checkbox", "radio"].includes(el.type) ? (el.checked ? "checked" : "")
      : tag === "select" ? clip(el.selectedOptions[0] && el.selectedOptions[0].innerText)
      : clip(tag === "input" || tag === "textarea" ? el.value : "");
    elements.push({ref: numbered(el), kind, name, value,
      url: tag === "a" || tag === "iframe" ? String(el.href || el.src || "").slice(0, 2048) : ""});
  }
  return {text, length, elements, more};
}"""

PLACE = (
    "async (ref, selector) => {"
    + _FIND
    + """
  const el = find(ref, selector);
  for (let up = el; up; up = up.parentElement) if (up.target && up.target !== "_self") up.target = "_self";
  if (el.form && el.form.target && el.form.target !== "_self") el.form.target = "_self";
  el.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  await new Promise((done) => setTimeout(done, 0));
  const box = el.getClientRects()[0];
  if (!box || !box.width || !box.height) return {hidden: true};
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const top = document.elementFromPoint(x, y);
  if (el.disabled) return {disabled: true};
  if (top && top !== el && !el.contains(top) && !top.contains(el) && (top.closest("label") || {}).control !== el)
    return {covered: top.localName + (top.id ? "#" + top.id : "")};
  return {x, y, file: el.localName === "input" && el.type === "file"};
}"""
)

FOCUS = (
    "(ref, selector, clear, text) => {"
    + _FIND
    + """
  const el = find(ref, selector);
  if (el.disabled || el.readOnly) return {disabled: true};
  if (el.localName === "select") {
    const option = [...el.options].find((one) => one.value === text || one.innerText.trim() === text.trim());
    if (!option) return {options: [...el.options].slice(0, 50).map((one) => one.innerText.trim().slice(0, 80))};
    el.value = option.value;
    el.dispatchEvent(new Event("input", {bubbles: true}));
    el.dispatchEvent(new Event("change", {bubbles: true}));
    return {chosen: true};
  }
  if (el.localName === "input" && el.type === "file") return {file: true};
  const writable = el.isContentEditable || el.localName === "textarea"
    || (el.localName === "input" && !["checkbox", "radio", "button", "submit", "reset", "image"].includes(el.type));
  if (!writable) return {unwritable: el.localName};
  el.scrollIntoView({block: "center", behavior: "instant"});
  el.focus();
  if (clear && el.isContentEditable) document.getSelection().selectAllChildren(el);
  else if (clear && el.select) el.select();
  return {};
}"""
)

SIZE = """() => ({
  width: Math.min(document.documentElement.scrollWidth, 4096),
  height: Math.min(Math.max(document.documentElement.scrollHeight, innerHeight), 8000)
})"""
