// What the programs share: `main(flows)` runs each flow and prints what came of it as one line of JSON.

import { z } from "zod";

export const QUESTION = "What is the weather in Paris?";
export const WEATHER = "sunny";
const Parcel = z.object({ size: z.enum(["small", "large"]), fragile: z.boolean() });
export const Order = z.object({
  customer: z.enum(["Ann", "Bo"]),
  paid: z.boolean(),
  parcel: Parcel,
  gift: Parcel.nullable(),
});
export const City = z.object({ city: z.string() });

/** `node PROGRAM URL MODEL [auto|required]`: whether the model has to be told to call a tool, or does so. */
export async function main(flows) {
  const [url, model, choice = "auto"] = process.argv.slice(2);
  for (const [flow, run] of Object.entries(flows)) {
    try {
      console.log(JSON.stringify({ flow, value: await run({ url, v1: `${url}/v1`, model, choice }) }));
    } catch (error) {
      console.log(JSON.stringify({ flow, error: `${error?.stack ?? error}` }));
    }
  }
  process.exit(0);
}
