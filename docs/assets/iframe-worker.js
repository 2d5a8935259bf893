// Search in pages that are opened as files: browsers refuse workers there, so one is acted out in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>search</title>";
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = (...addresses) =>
          addresses.reduce((before, next) => before.then(() => load(inside, next)), Promise.resolve());
        load(inside, address).then(() => {
          this.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
          waiting.splice(0).forEach((data) => this.postMessage(data));
        });
      }, { once: true });
      this.postMessage = (data) => waiting.push(data);
      this.terminate = () => frame.remove();
      document.documentElement.append(frame);
    }
  };

  function load(inside, address) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      script.src = address;
      script.onload = resolve;
      script.onerror = reject;
      inside.document.head.append(script);
    });
  }
}
