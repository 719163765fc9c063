// Writes what deploy/terraform has to know of the AWS provider's schema, for the kinds of
// resource that it uses: run in an empty folder after `npm install @cdktf/provider-aws@VERSION`,
// a package that is generated from that schema.
//
//   node provider-schema.mjs > terraform-provider-aws.json
//
// Its attributes have the provider's names; blocks are those that a resource can hold.
import { readFileSync } from "node:fs";

const kinds = {
  resource: [
    "cloudwatch_event_rule", "cloudwatch_event_target", "cloudwatch_metric_alarm", "eks_pod_identity_association",
    "iam_policy", "iam_role", "iam_role_policy_attachment", "sqs_queue", "sqs_queue_policy",
    "sqs_queue_redrive_allow_policy",
  ],
  data: ["aws_caller_identity", "aws_partition", "aws_region"],
};
const lib = process.env.LIB ?? "node_modules/@cdktf/provider-aws/lib";
const snake = (name) => name.replace(/[A-Z]/g, (c) => "_" + c.toLowerCase());
const schema = { provider: "", resource: {}, data: {} };

for (const [use, names] of Object.entries(kinds)) {
  for (const name of names) {
    const dir = `${lib}/${use === "data" ? "data-" : ""}${name.replaceAll("_", "-")}`;
    const code = readFileSync(`${dir}/index.js`, "utf8");
    const types = readFileSync(`${dir}/index.d.ts`, "utf8");
    schema.provider = code.match(/providerVersion: '([^']+)'/)[1];
    const entry = { required: [], optional: {}, computed: [], blocks: {} };

    // What can be set, at the top: `name: {... isBlock: false, type: "simple", ...}`.
    const top = code.slice(code.lastIndexOf("synthesizeHclAttributes()"));
    for (const [, attribute, body] of top.matchAll(/^ {12}(\w+): \{([\s\S]*?)^ {12}\}/gm)) {
      const [, isBlock] = body.match(/isBlock: (\w+)/);
      const type = body.match(/storageClassType: "(\w+)"/)[1];
      if (isBlock === "true") {
        const [, struct] = code.match(new RegExp(`value: [^\\n]*?(\\w+)ToHclTerraform[^\\n]*this\\._${attribute.replace(/_(\w)/g, (_, c) => c.toUpperCase())}\\b`)) ?? [];
        entry.blocks[attribute] = struct ? inner(code, struct) : {};
      } else {
        entry.optional[attribute] = type;
      }
    }
    // Which of them must be.
    const config = types.match(/export interface \w+Config extends cdktf\.TerraformMetaArguments \{([\s\S]*?)^\}/m)[1];
    for (const [, attribute] of config.matchAll(/readonly (\w+):/g)) {
      if (entry.optional[snake(attribute)]) entry.required.push(snake(attribute));
    }
    // What can be read.
    for (const [, attribute] of types.slice(types.lastIndexOf("export declare class")).matchAll(/^ {4}get (\w+)\(\)/gm)) {
      if (!attribute.endsWith("Input")) entry.computed.push(snake(attribute));
    }
    schema[use][use === "data" ? name : `aws_${name}`] = entry;
  }
}

function inner(code, struct) {
  const body = code.match(new RegExp(`^function ${struct}ToHclTerraform\\(struct\\) \\{([\\s\\S]*?)^\\}`, "m"))[1];
  return Object.fromEntries([...body.matchAll(/^ {8}(\w+): \{[\s\S]*?storageClassType: "(\w+)"/gm)].map(([, n, t]) => [n, t]));
}

process.stdout.write(JSON.stringify(schema, null, 1) + "\n");
