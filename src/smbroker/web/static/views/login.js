// The login: when there are rules and whoever looks is not known, or wants to be known. Passwords are not kept here.

import { login, logout } from "../ask.js";
import { h, say } from "../dom.js";

export function loggingIn() {
  const user = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const wrong = h("p", { className: "error", role: "alert" });
  const button = h("button", { type: "submit" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await login(user.value, password.value);
      location.reload();
    } catch (error) {
      password.value = "";
      say(wrong, error.message);
      button.disabled = false;
    }
  };
  return h("form", { className: "login", onsubmit: submit },
    h("h1", {}, "Log in"),
    h("label", {}, "User ", user),
    h("label", {}, "Password ", password),
    button, wrong);
}

// What the head says of it: nothing without rules.
export function whoLooks({ rights, user }, enter) {
  if (!rights) return [];
  if (!user) return [h("button", { type: "button", onclick: enter }, "Log in")];
  const leave = async () => {
    await logout();
    location.reload();
  };
  return [h("span", { title: "logged in" }, user), " ", h("button", { type: "button", onclick: leave }, "Log out")];
}
