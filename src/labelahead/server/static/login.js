// The login page of a server with accounts.

const form = document.getElementById("login"), told = document.getElementById("login-told");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  told.textContent = "";
  try {
    const response = await fetch("/api/login", {
      method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json", "X-Labelahead": "1" },
      body: JSON.stringify({ name: form.elements.name.value.trim(), password: form.elements.password.value }),
    });
    if (response.ok) { location.replace("/"); return; }
    const { error } = await response.json();
    told.textContent = `${error[0].toUpperCase()}${error.slice(1)}.`;
  } catch { told.textContent = "The server does not answer; try again."; }
  form.elements.password.select();
});
