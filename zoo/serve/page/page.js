// The page of `zoo serve`. Texts, labels and ids come from others: they become text nodes, and never markup.
"use strict";

const KEY = "memory-zoo-key";
const TALLY = "memory-zoo-tally";
const LONGEST = 600;
const TRYING = "Trying the edit on a copy of the model \u2026";
const find = (id) => document.getElementById(id);
const page = {
  info: null, // of GET /version
  text: null, // that was asked last
  record: null, // its answer
  asked: [], // the last texts of this tab, without repetitions
  isStale: false, // the memory has changed since that answer
  edits: [], // versions before the edits that Undo takes back, the last one at the end
  version: null, // that the last edit of this page made
  isBusy: false,
  question: null, // the text to label
  given: null, // its label, if it could not be saved
  answers: [], // answers and skips that Undo of the view Label takes back, the last one at the end
};

// --- elements ---

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Isolated, so that its direction of writing changes nothing around it.
const inert = (value, kind = null) => make("bdi", { class: kind }, String(value));
const fact = (...words) => make("span", {}, ...words);
const factsOf = (...facts) => make("div", { class: "facts" }, ...facts);
const idOf = (row) => fact("id ", inert(row.id));
const wordsIn = (...words) => make("p", { class: "text", dir: "auto" }, ...words);
const labelOf = (label) => (label ? inert(label, "label") : fact("no label")); // none, or an empty set
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const signed = (number) => (number < 0 ? "\u2212" : "+") + Math.abs(number).toFixed(3);
const button = (name, action, more = {}) => make("button", { type: "button", onclick: () => run(action), ...more }, name);

function* segments(text) {
  if (window.Intl && Intl.Segmenter) {
    for (const part of new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)) {
      yield [part.segment, part.isWordLike];
    }
  } else {
    for (const part of text.split(/([\p{L}\p{N}]+)/u)) yield [part, /[\p{L}\p{N}]/u.test(part)];
  }
}

const folded = (word) => word.normalize("NFKC").toLowerCase();

function wordsOf(text) {
  const words = new Set();
  for (const [part, isWord] of segments(text)) if (isWord) words.add(folded(part));
  return words;
}

// A text with the words that it shares with another one marked; the rest of a long one is shown on request.
function textOf(text, words = new Set()) {
  const shown = text.length > LONGEST ? `${text.slice(0, LONGEST)}\u2026` : text;
  const node = wordsIn();
  for (const [part, isWord] of segments(shown)) {
    node.append(isWord && words.has(folded(part)) ? make("mark", {}, part) : part);
  }
  if (shown === text) return node;
  const rest = make("details", {}, make("summary", {}, `all ${text.length.toLocaleString("en")} characters`));
  rest.addEventListener("toggle", () => rest.append(wordsIn(text)), { once: true });
  return make("div", {}, node, rest);
}

// --- the server ---

async function call(path, body) {
  const headers = {}, key = sessionStorage.getItem(KEY);
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new Error("The server cannot be reached. Is it still running?");
  }
  const values = await answer.json().catch(() => ({}));
  if (answer.status === 401) {
    sessionStorage.removeItem(KEY);
    showKeyForm();
    throw new Error(key === null ? "" : "This is not the key of the server.");
  }
  if (!answer.ok) {
    const words = values.detail ?? `The server answered with the status ${answer.status}.`;
    throw Object.assign(new Error(words), { status: answer.status });
  }
  return values;
}

function showKeyForm() {
  find("key").hidden = false;
  find("tabs").hidden = true;
  for (const panel of document.querySelectorAll("[role=tabpanel]")) panel.hidden = true;
  find("key-value").focus();
}

// One action at a time: a second click on an edit would make it twice.
async function run(action, waiting = "") {
  if (page.isBusy) return;
  page.isBusy = true;
  document.body.setAttribute("aria-busy", "true");
  await attempt(action, waiting);
  page.isBusy = false;
  document.body.removeAttribute("aria-busy");
}

// Shows an error in words.
async function attempt(action, waiting = "") {
  find("error").textContent = "";
  if (waiting) say(waiting);
  try {
    await action();
  } catch (error) {
    if (waiting) say("");
    find("error").textContent = error.message;
  }
}

function say(...parts) {
  find("status").replaceChildren(...parts);
}

async function open() {
  page.info = await call("version");
  find("key").hidden = true;
  find("tabs").hidden = false;
  const { classifies, rows } = page.info;
  find("abstention").hidden = !classifies;
  find("tab-label").hidden = page.info.pool === null;
  find("tab-audit").hidden = !(classifies && rows !== null);
  find("tab-history").hidden = rows === null;
  showInfo();
  select("ask");
  find("text").focus();
}

function showInfo() {
  const { model, kind, rows, memory_version: version } = page.info;
  const memory = rows === null ? [] : [`, ${rows.toLocaleString("en")} memories, version ${version}`];
  find("model").replaceChildren(inert(model), ": ", inert(kind), ...memory);
  document.title = `${model} \u2013 Memory Zoo`;
}

function showVersion({ version, rows }) {
  Object.assign(page.info, { memory_version: version, rows });
  showInfo();
}

// --- views ---

const tabs = () => [...document.querySelectorAll("[role=tab]")].filter((tab) => !tab.hidden);

function select(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isChosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    find(tab.getAttribute("aria-controls")).hidden = !isChosen;
  }
  if (!page.isBusy) say("");
  if (name === "history") attempt(showHistory);
  const isOld = page.question?.memory_version !== page.info.memory_version;
  if (name === "label" && page.given === null && isOld) run(() => showNext(false));
  if (name === "ask" && page.isStale && page.text !== null) run(() => ask(page.text));
}

function moveTab(event) {
  const all = tabs(), here = all.indexOf(event.target);
  const moves = { ArrowRight: here + 1, ArrowLeft: here - 1 + all.length, Home: 0, End: all.length - 1 };
  if (here < 0 || !(event.key in moves)) return;
  event.preventDefault();
  const next = all[moves[event.key] % all.length];
  next.focus();
  select(next.getAttribute("aria-controls"));
}

// --- ask ---

async function ask(text) {
  const body = { text }, level = find("max-error").value;
  if (page.info.classifies && level !== "") body.max_error = Number(level);
  const record = await call("predict", body);
  Object.assign(page, { text, record, isStale: false, asked: lastTexts([...page.asked.filter((each) => each !== text), text]) });
  const hasClasses = page.info.classifies;
  find("answer").replaceChildren(...(hasClasses ? classified(record) : [make("section", { class: "wide" }, general(record, true))]));
  return record;
}

// As many as a request for a preview may have.
function lastTexts(texts) {
  let characters = 0;
  return texts.slice(-100).reverse().filter((each) => (characters += each.length) <= 200_000).reverse();
}

async function askNew() {
  find("answer").replaceChildren();
  Object.assign(page, { text: null, record: null });
  await ask(find("text").value);
  say("");
  find("answer").querySelector("h2")?.focus();
}

function best(record) {
  return Object.entries(record.probabilities).reduce((most, each) => (each[1] > most[1] ? each : most))[0];
}

function classified(record) {
  const words = wordsOf(record.text), label = record.label ?? best(record);
  const verdict = make("section", { class: "verdict", "aria-labelledby": "verdict" });
  const title = make("h2", { id: "verdict", tabindex: "-1" });
  if (record.label === null) title.append("No label: the model abstains");
  else title.append(label ? inert(label) : "No label", `, ${percent(record.probability)}`);
  verdict.append(title);
  if (record.reason) verdict.append(whyAbstained(record, label));
  if (record.familiarity <= 0.05) {
    verdict.append(make("p", {}, `It may have none of the labels: ${percent(record.familiarity)} of the held-out rows look as little like them.`));
  }
  if (record.known_by_memory_alone) {
    verdict.append(make("p", {}, "Only rows that were added after the training have this label."));
  }
  const isLabelled = record.memories?.every((memory) => memory.label !== null) ?? true;
  if (page.info.rows !== null && isLabelled) verdict.append(correction(record, label));
  const left = make("div", {}, verdict);
  const members = Object.entries(record.contributions ?? {});
  if (members.length) left.append(contributions(members, label));
  left.append(probabilities(record));
  const all = [left];
  if (record.memories?.length) {
    const rows = record.memories.map((memory) => memoryRow(memory, words));
    const list = make("ol", { class: "list" }, ...rows);
    all.push(make("section", { "aria-labelledby": "memories" }, make("h2", { id: "memories" }, "Memories"), list));
  }
  return all;
}

function whyAbstained(record, label) {
  const level = Number(find("max-error").value) * 100;
  const reason = record.known_by_memory_alone
    ? "no held-out row shows how often this label is wrong, or it is not probable enough"
    : `to keep the error below ${level} %, it would have to be more probable`;
  return make("p", {}, "Its best label is ", inert(label, "label"), ` with ${percent(record.probability)}: ${reason}.`);
}

function bars(caption, rows) {
  const table = make("table", {}, make("caption", {}, ...caption));
  const largest = Math.max(...rows.map(([, value]) => Math.abs(value)), 1e-9);
  const isSigned = rows.some(([, value]) => value < 0);
  for (const [name, value, shown] of rows) {
    const fill = make("span", { class: value < 0 ? "minus" : null });
    const share = (100 * Math.abs(value)) / largest / (isSigned ? 2 : 1);
    fill.style.width = `${share}%`;
    fill.style.left = `${isSigned ? (value < 0 ? 50 - share : 50) : 0}%`;
    const scale = make("div", {}, fill, isSigned ? make("span", { class: "middle" }) : null);
    table.append(make("tr", {},
      make("th", { scope: "row" }, inert(name)),
      make("td", { class: "number" }, shown),
      make("td", { class: "scale", "aria-hidden": "true" }, scale)));
  }
  return table;
}

function contributions(members, label) {
  const sorted = members.sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]));
  const caption = ["Contribution of each member to the score of ", inert(label, "label")];
  const table = bars(caption, sorted.map(([name, value]) => [name, value, signed(value)]));
  return make("section", { "aria-label": "Contributions" }, table);
}

function probabilities(record) {
  const sorted = Object.entries(record.probabilities).sort((one, other) => other[1] - one[1]);
  const shown = sorted.slice(0, 50).map(([name, value]) => [name, value, percent(value)]);
  const caption = sorted.length > 50 ? `the 50 most probable of ${sorted.length} labels` : "all labels";
  return make("details", {}, make("summary", {}, "Probabilities"), bars([caption], shown));
}

function labelSelect(id, without) {
  // A set of labels is written as its table writes it.
  if (page.record.of_labels) return make("input", { id, value: without, dir: "auto" });
  const labels = Object.keys(page.record.probabilities).filter((label) => label !== without).sort();
  return make("select", { id }, ...labels.map((label) => make("option", { value: label, dir: "auto" }, label)));
}

function correction(record, label) {
  const choice = labelSelect("other-label", label);
  choice.addEventListener("change", () => find("effects").replaceChildren());
  const note = make("input", { id: "note", maxlength: "500", autocomplete: "off", dir: "auto" });
  const row = (chosen) => ({ rows: [{ text: record.text, label: chosen || null }], relabel: true, note: note.value || null });
  const teach = (chosen) => () => edit("memory/add", row(chosen()));
  return make("div", { class: "correction" },
    make("div", { class: "row" },
      make("button", { type: "button", id: "right", onclick: () => run(teach(() => label)) }, "Right: it is ", label ? inert(label) : "no label"),
      choice.length ? make("span", { class: "actions" },
        make("label", { for: "other-label" }, "Wrong: it is"), choice,
        button("Save", teach(() => choice.value), { id: "wrong" }),
        make("button", { type: "button", id: "preview", onclick: () => run(() => preview(row(choice.value)), TRYING) }, "Preview")) : null),
    make("div", { class: "row" }, make("label", { for: "note" }, "Note"), note),
    make("p", { class: "hint" }, "The text joins the memory with this label; a row with this text gets it. ",
      "Preview shows what this would do, and changes nothing."),
    make("div", { id: "effects" }));
}

// Shows what an edit would do to the answers to the texts of this tab, and to held-out rows.
async function preview(body) {
  const { changes, held_out: accuracy } = await call("memory/preview", { edit: body, texts: page.asked });
  const number = page.asked.length;
  const asked = number === 1 ? "the text asked in this tab" : `the ${number} texts asked in this tab`;
  const state = ([label, probability]) => [labelOf(label), ` ${percent(probability)}`];
  const items = changes.map(({ text, before, after }) =>
    make("li", {}, textOf(text), factsOf(fact(...state(before), " \u2192 ", ...state(after)))));
  find("effects").replaceChildren(
    make("p", {}, "Nothing is saved yet. Answers that would change with ", labelOf(body.rows[0].label), `, of ${asked}: ${changes.length}.`),
    items.length ? make("ul", { class: "list", "aria-label": "Answers that would change" }, ...items) : "",
    accuracy === null ? "" : make("p", {}, `Texts that are not in the memory: ${accuracy}.`));
  say(`Previewed: ${changes.length} of ${number} answers would change.`, accuracy === null ? "" : ` ${accuracy}.`);
}

function memoryRow(memory, words) {
  const facts = [
    labelOf(memory.label),
    idOf(memory),
    fact(`weight ${signed(memory.weight)}`),
    fact(`score ${memory.retrieval_score.toFixed(2)}`),
    memory.found_by === undefined ? null : fact(`found by ${memory.found_by}`),
  ];
  const row = make("li", {}, textOf(memory.text, words), factsOf(...facts));
  if (page.info.rows === null) return row;
  const note = () => find("note")?.value || null;
  const actions = make("div", { class: "actions" });
  const remove = button("Remove", () => edit("memory/remove", { ids: [memory.id], note: note() }));
  const relabel = make("button", { type: "button" }, "Relabel");
  for (const each of [relabel, remove]) each.setAttribute("aria-description", `row ${memory.id}`);
  relabel.addEventListener("click", () => {
    const choice = labelSelect(`label-of-${memory.id}`, memory.label);
    choice.setAttribute("aria-label", `New label of row ${memory.id}`);
    const save = () => edit("memory/relabel", { labels: { [memory.id]: choice.value || null }, note: note() });
    relabel.replaceWith(choice, button("Save", save));
    choice.focus();
  });
  if (memory.label !== null) actions.append(relabel);
  actions.append(remove);
  row.append(actions);
  return row;
}

// The record of a model of another kind: single values, and lists with their scores.
function general(value, isTop = false) {
  if (Array.isArray(value)) {
    return make("ol", { class: "list" }, ...value.map((each) => make("li", {}, general(each))));
  }
  if (value === null || typeof value !== "object") return inert(typeof value === "number" ? +value.toFixed(4) : value);
  const node = make("div"), facts = factsOf();
  for (const [name, each] of Object.entries(value)) {
    if (each === null || (isTop && each === page.text) || (Array.isArray(each) && !each.length)) continue;
    if (name === "text" || name === "question") node.append(textOf(String(each), wordsOf(page.text)));
    else if (typeof each !== "object") facts.append(fact(`${name.replaceAll("_", " ")} `, general(each)));
    else if (name === "words") node.append(make("details", {}, make("summary", {}, "words"), general(each)));
    else node.append(make("h2", { tabindex: "-1" }, name[0].toUpperCase() + name.slice(1)), general(each));
  }
  node.insertBefore(facts, node.querySelector(":scope > h2, :scope > details"));
  return node;
}

// --- edits ---

// A version of others between two edits ends what Undo may take back.
function remember(done) {
  if (page.version !== done.version - 1) page.edits = [];
  page.edits.push(done.version - 1);
}

async function edit(path, body) {
  const done = await call(path, body), number = done.added ?? done.changed;
  const changed = number + (done.relabelled ?? 0);
  if (!changed) {
    say("Nothing to change: the memory already has this text with this label.");
    return;
  }
  remember(done);
  const what = done.relabelled ? "relabelled" : { "memory/add": "added", "memory/remove": "removed" }[path] ?? "relabelled";
  await changedTo(done, `${changed} ${changed === 1 ? "row" : "rows"} ${what}: version ${done.version}.`);
}

// Shows the new version, and how the answer to the last text has moved.
async function changedTo(done, message) {
  page.version = done.version;
  showVersion(done);
  find("undo").hidden = !page.edits.length;
  say(message);
  const before = page.record;
  page.isStale = true;
  if (before !== null && !find("ask").hidden) {
    const after = await ask(page.text);
    if (page.info.classifies) say(`${message} `, ...moved(before, after));
  }
  find("status").focus();
}

function moved(before, after) {
  const name = (record) => labelOf(record.label);
  const label = after.label ?? best(after);
  const share = Object.hasOwn(before.probabilities, label) ? percent(before.probabilities[label]) : "new label";
  // Of a set, each label has its own; the answer lists them.
  const change = after.of_labels ? [] : ["Probability of ", inert(label, "label"), `: ${share} \u2192 ${percent(after.probabilities[label])}.`];
  if (before.label === after.label) return ["Answer as before: ", name(after), ". ", ...change];
  return ["Answer: ", name(before), " \u2192 ", name(after), ". ", ...change];
}

async function undo() {
  const current = (await call("version")).memory_version;
  if (current !== page.version) {
    throw new Error(`The memory has changed elsewhere and is now version ${current}; go back in the view History.`);
  }
  const version = page.edits[page.edits.length - 1];
  const done = await call("memory/revert", { version, note: `undo of version ${current}` });
  page.edits.pop();
  if (!find("history").hidden) await showHistory();
  await changedTo(done, `Undone: version ${done.version} has the rows of version ${version}.`);
}

// --- label ---

const COUNTS = { labelled: 0, drawn: 0, right: 0, compared: 0, equal: 0 };
const tallyName = () => `${TALLY} ${page.info.model} ${page.info.pool}`;
const tally = () => ({ ...COUNTS, ...JSON.parse(sessionStorage.getItem(tallyName())) });
const skipped = () => page.answers.filter((each) => each.label === null).map((each) => each.question.row);

async function showNext(hasFocus = true) {
  // As many as the server takes: the first of more may come again.
  const rows = skipped().slice(-500).map((row) => `skipped=${row}`);
  try {
    showQuestion(await call(`suggest?${rows.join("&")}`), hasFocus);
  } catch (error) {
    page.question = page.given = null;
    find("question-to-label").replaceChildren(button("Load the next text", showNext, { id: "again" }));
    if (hasFocus) find("again").focus();
    throw error;
  }
}

function showQuestion(question, hasFocus = true) {
  page.question = question;
  page.given = null;
  Object.assign(page.info, { left: question.texts - question.unlabelled, texts: question.texts });
  const isLeft = question.row !== null;
  find("skip").hidden = !isLeft;
  find("field-keys").hidden = !isLeft || !(question.prediction.of_labels || labelsOf(question).length > 9);
  find("question-to-label").replaceChildren(...(isLeft ? questionNodes(question) : nothingLeft(question)));
  showProgress();
  if (hasFocus) find("to-label").focus();
}

function nothingLeft(question) {
  const number = skipped().length;
  const words = question.unlabelled ? `All texts are labelled but ${question.unlabelled}, which you have skipped.` : "All texts are labelled.";
  const again = () => {
    page.answers = page.answers.filter((each) => each.label !== null);
    return showNext();
  };
  return [make("p", { id: "to-label", tabindex: "-1" }, words), number && question.unlabelled ? button("Show the skipped texts", again) : ""];
}

// Of sets, the one that a table would have.
const guessOf = (question) => (question.prediction.of_labels ? question.prediction.label : labelsOf(question)[0]);

const labelsOf = (question) => Object.entries(question.prediction.probabilities).sort((one, other) => other[1] - one[1]).map(([label]) => label);

function questionNodes(question) {
  const { text, probabilities, of_labels: set } = question.prediction, labels = labelsOf(question);
  const isGuess = (label, i) => (set ? set.some((each) => each.label === label) : i === 0);
  const choices = labels.slice(0, 9).map((label, i) => make("li", {}, make("button",
    { type: "button", class: set || i ? null : "main", "aria-keyshortcuts": String(i + 1), "aria-pressed": set ? String(isGuess(label)) : null,
      "data-label": label, onclick: () => (set ? toggle(label) : run(() => give(label))) },
    make("kbd", {}, String(i + 1)), inert(label), make("span", { class: "number" }, `${isGuess(label, i) ? "guess, " : ""}${percent(probabilities[label])}`))));
  const words = textOf(text);
  words.id = "words-to-label";
  const why = question.drawn === "at random" ? "drawn at random" : "typical, and the model is unsure";
  return [
    make("div", { id: "to-label", tabindex: "0", role: "group", "aria-label": "Text", "aria-describedby": words.id }, words),
    make("p", { class: "facts" }, fact("row ", inert(question.id), " of ", inert(page.info.pool.split("/").pop())), fact(why)),
    make("ol", { class: "choices", "aria-label": "Labels, the guess first" }, ...choices),
    set ? writtenSet(question) : labels.length > 9 ? otherLabel(labels) : "",
  ];
}

// A field with a set of labels, as a table has it; the numbered labels are switched on and off in it.
function writtenSet(question) {
  const field = make("input", { id: "other", autocomplete: "off", spellcheck: "false", dir: "auto", value: guessOf(question), oninput: showPressed });
  return make("form", { class: "row", id: "set", onsubmit: (event) => { event.preventDefault(); run(() => give(setOf(field.value).join(page.info.label_separator))); } },
    make("label", { for: "other" }, "All labels of the text"), field, make("button", { type: "submit", class: "main" }, "Save (Enter)"));
}

const setOf = (written) => [...new Set(written.split(page.info.label_separator).map((label) => label.trim()).filter(Boolean))].sort();

function toggle(label) {
  const labels = new Set(setOf(find("other").value));
  if (!labels.delete(label)) labels.add(label);
  find("other").value = [...labels].sort().join(page.info.label_separator);
  showPressed();
  find("to-label").focus(); // where Enter saves
}

function showPressed() {
  const labels = setOf(find("other").value);
  for (const each of document.querySelectorAll(".choices button")) each.setAttribute("aria-pressed", String(labels.includes(each.dataset.label)));
}

// A field for one of many labels, which offers those that contain its words.
function otherLabel(labels) {
  const offered = make("datalist", { id: "offered" });
  const field = make("input", { id: "other", list: "offered", autocomplete: "off", spellcheck: "false", dir: "auto", required: true });
  const matches = () => labels.filter((label) => folded(label).includes(folded(field.value.trim())));
  const offer = () => offered.replaceChildren(...matches().slice(0, 50).map((label) => make("option", { value: label })));
  field.addEventListener("input", offer);
  const choose = () => {
    const value = field.value.trim(), near = matches();
    const label = labels.find((each) => each === value) ?? (near.length === 1 ? near[0] : undefined);
    if (label === undefined) {
      const problem = near.length ? `is part of ${near.length} labels; write all of one` : `is none of the ${labels.length} labels`;
      throw new Error(`\u201c${value}\u201d ${problem}. Nothing is saved.`);
    }
    return give(label);
  };
  offer();
  return make("form", { class: "row", onsubmit: (event) => { event.preventDefault(); run(choose); } },
    make("label", { for: "other" }, `Any of the ${labels.length.toLocaleString("en")} labels`), field, offered, make("button", { type: "submit" }, "Save"));
}

async function give(label) {
  const question = page.question, guess = guessOf(question);
  page.given = label;
  // By characters: a half of one would be refused.
  const note = Array.from(`row ${question.id} of ${page.info.pool}, guess ${guess}`).slice(0, 500).join("");
  let done;
  try {
    done = await call("memory/add", { rows: [{ text: question.prediction.text, label: label || null }], note });
  } catch (error) {
    find("again")?.remove();
    const again = make("button", { type: "button", id: "again", class: "main", onclick: () => run(() => give(label)) }, "Save again: ", labelOf(label));
    find("question-to-label").prepend(again);
    again.focus();
    throw new Error(`${error.message} Your answer is not saved yet; it stays here.`);
  }
  if (done.added) {
    page.answers.push({ question, label, ids: done.ids });
    count(question, label, 1);
  }
  // What Undo of the view Ask would take back has other rows by now.
  Object.assign(page, { edits: [], isStale: true });
  find("undo").hidden = true;
  showVersion(done);
  const saved = ["Saved: ", labelOf(label), label === guess ? ", as guessed. " : ["; the guess was ", labelOf(guess), ". "]].flat();
  if (!done.added) say("Somebody has labelled this text meanwhile, as ", labelOf(label), ", too: nothing to save.");
  else if (done.conflicting) say(...saved, "Somebody has meanwhile given this text another label; the memory has both.");
  else say(...saved, ...(question.label === null || question.label === label ? [] : ["The table has ", inert(question.label, "label"), "."]));
  await showNext();
}

// Adds an answer to the counts of this tab, or takes it back.
function count(question, label, sign) {
  const counts = tally();
  const add = (name, isTrue) => { counts[name] += isTrue ? sign : 0; };
  add("labelled", true);
  add("drawn", question.drawn === "at random");
  add("right", question.drawn === "at random" && guessOf(question) === label);
  add("compared", question.label !== null);
  add("equal", question.label === label);
  sessionStorage.setItem(tallyName(), JSON.stringify(counts));
}

function showProgress() {
  const { labelled, drawn, right, compared, equal } = tally(), { left, texts } = page.info;
  const facts = [`${labelled} labelled in this tab`, `${left.toLocaleString("en")} of ${texts.toLocaleString("en")} texts in the memory`];
  if (drawn) {
    // Of a smoothed share: a few right guesses in a row have no standard error of 0.
    const share = (right + 1) / (drawn + 2);
    facts.push(`${right} of ${drawn} guesses right, of texts drawn at random: ${percent(right / drawn)}, standard error ${percent(Math.sqrt((share * (1 - share)) / drawn))}`);
  } else {
    facts.push("guesses are counted on texts drawn at random, a fifth of all: none yet");
  }
  if (compared) facts.push(`${equal} of ${compared} answers equal the label of the table`);
  find("progress").replaceChildren(...facts.map((fact) => make("li", {}, fact)));
  find("take-back").hidden = !page.answers.length;
}

function skip() {
  if (page.question?.row == null) return showNext();
  page.answers.push({ question: page.question, label: null });
  return showNext();
}

async function takeBack() {
  const last = page.answers[page.answers.length - 1];
  if (last === undefined) throw new Error("There is no answer of this tab to undo.");
  if (last.label !== null) {
    const body = { ids: last.ids, note: "undo of a label" };
    const done = await call("memory/remove", body).catch((error) => {
      if (error.status === 400) page.answers.pop(); // the row is no longer in the memory
      throw error;
    });
    count(last.question, last.label, -1);
    showVersion(done);
  }
  page.answers.pop();
  showQuestion(last.question);
  say(...(last.label === null ? ["Back to the text that you skipped."] : ["Undone: ", labelOf(last.label), " is no longer in the memory."]));
}

function labelByKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.matches("input")) {
    if (key === "Escape") find("to-label").focus();
    return;
  }
  if (key === "Enter" && target.id === "to-label") find("set")?.requestSubmit();
  if (key.length > 1 || key === " " || event.repeat) return;
  event.preventDefault();
  const choices = document.querySelectorAll(".choices button");
  if (key === "s" && !find("skip").hidden) run(skip);
  else if (key === "u") run(takeBack);
  else if (key === "/" && find("other")) find("other").focus();
  else if (/[1-9]/.test(key) && choices[key - 1]) choices[key - 1].click();
  else say(`The key ${key} has no label here.`);
}

// --- audit ---

async function showAudit() {
  const { summary, rows } = await call("memory/audit");
  say(summary);
  const list = make("ol", { class: "list", "aria-label": "Rows" }, ...rows.map(suspect));
  const keys = make("p", { class: "hint" }, "Keys on a row: a accepts the other label, k keeps the label, s skips, arrows move.");
  find("suspects").replaceChildren(...(rows.length ? [keys, list] : ["No row has another label that is more probable."]));
  showAccepted();
  list.firstChild?.focus();
}

function suspect(row, number) {
  const node = make("li", { tabindex: number ? "-1" : "0", onkeydown: judgeByKey });
  node.row = row;
  const choices = [["accept", "Accept (a)"], ["keep", "Keep (k)"], ["skip", "Skip (s)"]].map(([verdict, name]) =>
    make("button", { type: "button", "data-verdict": verdict, "aria-pressed": "false", onclick: () => judge(node, verdict) }, name));
  const against = row.contradictions.map((each) =>
    make("li", {}, textOf(each.text, wordsOf(row.text)), factsOf(labelOf(each.label), idOf(each))));
  node.append(
    textOf(row.text),
    factsOf(
      fact(labelOf(row.label), " \u2192 probably ", labelOf(row.suggested)),
      idOf(row), fact(`suspicion ${row.suspicion.toFixed(3)}`)),
    against.length ? make("ul", { class: "list", "aria-label": "Rows that contradict it" }, ...against) : "",
    make("div", { class: "actions" }, ...choices));
  return node;
}

function judge(node, verdict) {
  node.verdict = verdict;
  for (const each of node.querySelectorAll("[data-verdict]")) {
    each.setAttribute("aria-pressed", String(each.dataset.verdict === verdict));
  }
  showAccepted();
}

function judgeByKey(event) {
  const node = event.currentTarget;
  const verdict = { a: "accept", k: "keep", s: "skip" }[event.key];
  const isMove = ["ArrowDown", "ArrowUp"].includes(event.key);
  if (event.ctrlKey || event.metaKey || event.altKey || !(verdict || isMove)) return;
  event.preventDefault();
  if (verdict) judge(node, verdict);
  const next = event.key === "ArrowUp" ? node.previousElementSibling : node.nextElementSibling;
  if (next === null) return;
  node.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

const acceptedRows = () => [...find("suspects").querySelectorAll("li")].filter((node) => node.verdict === "accept");

function showAccepted() {
  const number = acceptedRows().length;
  find("apply").hidden = !number;
  find("apply").textContent = `Apply ${number} accepted`;
}

async function applyAudit() {
  const chosen = acceptedRows().map((node) => [node.row.id, node.row.suggested || null]);
  const done = await call("memory/relabel", { labels: Object.fromEntries(chosen), note: "audit" });
  if (done.changed) remember(done);
  for (const node of acceptedRows()) node.remove();
  showAccepted();
  if (!done.changed) say("Nothing to change: the rows already have these labels.");
  else await changedTo(done, `${done.changed} rows relabelled: version ${done.version}.`);
}

// --- history ---

async function showHistory() {
  const { versions, memory_version: current } = await call("memory/log");
  find("versions").replaceChildren(...versions.map((entry, i) => versionRow(entry, i > 0, current)).reverse());
  const drift = page.info.classifies ? await call("drift").catch(() => null) : null;
  find("drift").textContent = !drift?.texts ? "" : `Texts asked of this server: ${drift.summary}.`;
  const held = page.info.classifies ? await call("calibration").catch(() => null) : null;
  find("calibration").replaceChildren(...(held === null ? [] : showCalibration(held)));
}

// Two pictures of the held-out rows, each with its numbers as a table.
function showCalibration({ rows, accuracy, bins, coverage, is_training: isTraining, is_current: isCurrent }) {
  const kind = isTraining ? "training rows, each by a model that was fitted without it" : "rows that were held out of the training";
  const since = isCurrent ? "" : " The memory has changed since; zoo memory tune measures it again.";
  return [
    make("h2", {}, "Held-out rows"),
    make("p", {}, `${percent(accuracy)} right answers to ${rows.toLocaleString("en")} ${kind}.${since}`),
    make("div", { class: "pictures" },
      drawPicture("Are probabilities right?", "probability of the answer", ["right answers"], bins.map((each) => [each.probability, each.right]), true),
      drawPicture("Error among the most probable answers", "answered texts", ["error", "its upper bound at each point, confidence 95 %"],
        coverage.map((each) => [each.answered, each.error, each.bound]), false)),
  ];
}

function draw(tag, properties, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Points [x, y, ...] with shares x from 0 to 1; a diagonal where y should equal x.
function drawPicture(title, across, names, points, isDiagonal) {
  const top = isDiagonal ? 1 : Math.max(0.1, Math.ceil(10 * Math.max(...points.flatMap((each) => each.slice(1)))) / 10);
  const x = (share) => 44 + 300 * share, y = (share) => 170 - (150 * share) / top;
  const svg = draw("svg", { viewBox: "0 0 360 210", "aria-hidden": "true" });
  const words = (at, height, text, anchor = "middle") => svg.append(draw("text", { x: at, y: height, "text-anchor": anchor }, text));
  for (const share of [0, 0.5, 1]) {
    svg.append(draw("line", { class: "grid", x1: x(0), x2: x(1), y1: y(share * top), y2: y(share * top) }));
    words(38, y(share * top) + 4, `${Math.round(100 * share * top)}`, "end");
    words(x(share), 186, `${100 * share}`);
  }
  words(x(0.5), 204, `${across}, %`);
  if (isDiagonal) svg.append(draw("line", { class: "ideal", x1: x(0), x2: x(1), y1: y(0), y2: y(1) }));
  names.forEach((_, i) => svg.append(draw("polyline", { class: `curve curve-${i}`, points: points.map((each) => `${x(each[0])},${y(each[i + 1])}`).join(" ") })));
  if (isDiagonal) for (const each of points) svg.append(draw("circle", { cx: x(each[0]), cy: y(each[1]), r: 4 }));
  const head = make("tr", {}, ...[across, ...names].map((name) => make("th", { scope: "col" }, name)));
  const lines = points.map((each) => make("tr", {}, ...each.map((value) => make("td", {}, percent(value)))));
  const key = isDiagonal ? `${names[0]}, %; dashed: the same` : `${names.join(", %; dashed: ")}`;
  return make("figure", {},
    make("figcaption", {}, make("strong", {}, title), ` (${key})`), svg,
    make("details", {}, make("summary", {}, `Numbers: ${title.toLowerCase()}`), make("table", {}, head, ...lines)));
}

function versionRow(entry, hasEarlier, current) {
  const isCurrent = entry.version === current;
  const time = make("time", { datetime: entry.time }, new Date(entry.time).toLocaleString());
  const facts = [time, fact(`${entry.rows.toLocaleString("en")} rows`), fact(entry.change)];
  const row = make("li", {},
    make("h2", {}, `Version ${entry.version}${isCurrent ? " (current)" : ""}`),
    factsOf(...facts));
  if (entry.note) row.append(make("p", { dir: "auto" }, entry.note));
  if (hasEarlier) {
    const changes = make("details", {}, make("summary", {}, "What changed"));
    const fill = () => attempt(async () => {
      if (!changes.open || changes.children.length > 1) return;
      changes.append(...differences(await call(`memory/diff?from=${entry.version - 1}&to=${entry.version}`)));
    });
    changes.addEventListener("toggle", fill);
    row.append(changes);
  }
  if (!isCurrent) row.append(button("Go back to this version", () => goBack(entry.version), { "aria-description": `version ${entry.version}` }));
  return row;
}

function differences(kinds) {
  const parts = [];
  for (const kind of ["added", "removed", "changed"]) {
    const { count, rows } = kinds[kind];
    if (!count) continue;
    const more = count > rows.length ? `, the first ${rows.length}` : "";
    const items = rows.map((row) => {
      const old = row.before ?? row;
      return make("li", {},
        old.text === row.text ? null : wordsIn(make("del", {}, old.text)),
        wordsIn(row.text),
        factsOf(
          fact(...(old.label === row.label ? [] : [labelOf(old.label), " \u2192 "]), labelOf(row.label)),
          idOf(row)));
    });
    parts.push(make("p", {}, `${count.toLocaleString("en")} ${kind}${more}`), make("ul", { class: "list" }, ...items));
  }
  return parts.length ? parts : [make("p", {}, "The same rows.")];
}

async function goBack(version) {
  const done = await call("memory/revert", { version });
  if (done.version !== version) remember(done);
  await showHistory();
  await changedTo(done, `Version ${done.version} has the rows of version ${version}.`);
}

// --- start ---

find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = find("key-value").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    find("error").textContent = "A key has letters, digits and signs of ASCII, without spaces.";
    find("key-value").select();
    return;
  }
  sessionStorage.setItem(KEY, key);
  find("key-value").value = "";
  run(open);
});
find("question").addEventListener("submit", (event) => {
  event.preventDefault();
  run(askNew, "Computing \u2026");
});
find("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("question").requestSubmit();
});
find("max-error").addEventListener("change", () => {
  if (page.text !== null) run(() => ask(page.text));
});
find("undo").addEventListener("click", () => run(undo));
find("find").addEventListener("click", () => run(showAudit, "Computing: members are fitted without each part of the rows \u2026"));
find("apply").addEventListener("click", () => run(applyAudit));
find("tabs").addEventListener("keydown", moveTab);
find("skip").addEventListener("click", () => run(skip));
find("take-back").addEventListener("click", () => run(takeBack));
for (const id of ["label", "tab-label"]) find(id).addEventListener("keydown", labelByKey);
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => select(tab.getAttribute("aria-controls")));
}
run(open);
