// Browsers refuse to fetch pages of a site that is opened as a file, and Sphinx's search fetches every
// result to show an excerpt. From a file, the texts come from a script that docs/_ext/site_search.py writes.
if (location.protocol === "file:" && location.pathname.endsWith("/search.html")) {
  const here = document.currentScript.src;
  const root = new URL("..", here).href;
  const fetchFromNetwork = window.fetch.bind(window);
  let loaded;
  const loadTexts = () =>
    (loaded ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("page_texts.js", here).href;
      script.onload = () => resolve(window.PAGE_TEXTS);
      script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
      document.head.append(script);
    }));
  window.fetch = async (address, ...options) => {
    const url = new URL(address, location.href);
    url.hash = url.search = "";
    const path = decodeURIComponent(url.href).replace(decodeURIComponent(root), "");
    const texts = await loadTexts();
    return path in texts ? new Response(texts[path]) : fetchFromNetwork(address, ...options);
  };
}
