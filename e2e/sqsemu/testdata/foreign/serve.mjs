// Serves on a free loopback port, says where on standard output, and ends with its standard input: so it never outlives
// the test that started it, however that one ends. The only argument is the folder of the install.
import { register } from "node:module";
import { pathToFileURL } from "node:url";

// Node has its own SQLite only since 22.5. The emulator loads it always and uses it only to keep its state on disk, which
// we do not ask for: with an empty stand-in it runs on Node 20 too.
const withoutSQLite = `
  export function resolve(name, context, next) {
    return name === "node:sqlite"
      ? { url: "data:text/javascript,export class DatabaseSync {}", shortCircuit: true }
      : next(name, context);
  }`;
register("data:text/javascript," + encodeURIComponent(withoutSQLite));

const { buildApp } = await import(pathToFileURL(process.argv[2] + "/node_modules/fauxqs/dist/app.js").href);
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
// Its own start function would listen on all interfaces.
console.log(await buildApp({ logger: false }).listen({ host: "127.0.0.1", port: 0 }));
