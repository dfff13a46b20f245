// The publish box.

import { publish } from "../ask.js";
import { h, say } from "../dom.js";
import { watch } from "../live.js";
import { linkTo } from "./topics.js";

export function form(name) {
  const topic = h("input", { name: "topic", value: name, required: true, placeholder: "house/attic/temperature", spellcheck: false, autocomplete: "off" });
  const body = h("textarea", { name: "payload", rows: 4, placeholder: "21.5", spellcheck: false });
  const retain = h("input", { type: "checkbox", name: "retain" });
  const said = h("p", { className: "said", role: "status" });
  const button = h("button", { type: "submit", className: "main" }, "Publish");

  async function send(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const { offset } = await publish(topic.value, body.value, retain.checked);
      said.className = "said good";
      const where = h("a", { href: linkTo(topic.value) }, "look at the topic");
      said.replaceChildren(offset === null ? "Published; " : `On disk, offset ${offset}; `, where);
    } catch (error) {
      said.className = "said bad";
      say(said, `Not published: ${error.message}`);
    }
    button.disabled = false;
  }

  return h("form", { className: "publish", onsubmit: send },
    h("label", {}, "Topic", topic), h("label", {}, "Message", body),
    h("label", { className: "check" }, retain, "retain: MQTT subscribers that come later get it"), button, said);
}

export function publishing(place, _signal) {
  watch({}, {});
  return h("div", { className: "narrow" }, h("h1", {}, "Publish"), h("section", { className: "panel" }, form(place.query.get("topic") ?? "")));
}
