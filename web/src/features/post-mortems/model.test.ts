import { describe, expect, it } from "vitest";
import type { PostMortem } from "@/api/types";
import { count, culpritFacts, gpuHours, known, moment, seconds, sum, timeFacts, UNKNOWN } from "./model";

describe("the facts of a post-mortem", () => {
  it("say what is not known, and 0 only where it is known", () => {
    for (const text of [known(null), seconds(null), moment(null), count(null), gpuHours(null)])
      expect(text).toBe(UNKNOWN);
    expect([known(0), seconds(0), count(0), gpuHours(0)]).toEqual(["0", "0 s", "0", "0"]);
  });

  it("mark sums that are lower limits", () => {
    expect(sum("12", true)).toBe("at least 12");
    expect(sum("12", false)).toBe("12");
    expect(sum(UNKNOWN, true)).toBe(UNKNOWN);
    expect(gpuHours(12.345)).toBe("12.3");
  });

  it("name the culprit and the times in UTC", () => {
    const found = {
      incident: { cause: "faulty_gpu", assignee: null, acknowledged_by: "ada" },
      culprit: { node: "n1", rack: null, device: "gpu0", gpu: 0, serial: "S-1" },
      times: {
        failed_at: null,
        first_finding_at: null,
        opened_at: 1_800_000_000,
        acknowledged_at: 1_800_000_060.5,
        recovered_at: null,
        closed_at: null,
      },
    } as unknown as PostMortem;
    const facts = Object.fromEntries([...culpritFacts(found), ...timeFacts(found)]);
    expect(facts.Cause).toBe("Faulty GPU");
    expect(facts.GPU).toBe("0");
    expect(facts.Rack).toBe(UNKNOWN);
    expect(facts.Opened).toBe("2027-01-15T08:00:00.000Z");
    expect(facts.Acknowledged).toBe("2027-01-15T08:01:00.500Z by ada");
    expect(facts.Recovered).toBe("not recovered");
  });
});
