import { describe, expect, it } from "vitest";
import { headline, sortedAccounts, stances, whyOf } from "./judgement-model";
import type { DetectorAccount, DetectorState } from "./types";

const account = (name: string, state: DetectorState, why = ""): DetectorAccount => ({
  name,
  state,
  why,
  numbers: {},
});

describe("accounts", () => {
  it("put first who does not judge and should", () => {
    const list = [
      account("b", "judging"),
      account("i", "idle"),
      account("l", "learning"),
      account("a", "abstains"),
    ];
    expect(sortedAccounts(list).map((a) => a.name)).toEqual(["a", "l", "b", "i"]);
  });

  it("show first a stance that is not known yet", () => {
    const odd = account("x", "new" as DetectorState);
    expect(sortedAccounts([odd, account("b", "judging")]).map((a) => a.name)).toEqual(["x", "b"]);
    expect(whyOf(odd)).toContain("says nothing");
  });

  it("never look healthy unless they judge, and not even then claim health", () => {
    for (const look of Object.values(stances)) expect(look.tone).not.toBe("healthy");
    expect(new Set(Object.values(stances).map((look) => look.glyph)).size).toBe(4);
  });

  it("are counted in words", () => {
    const list = [
      account("a", "judging"),
      account("b", "judging"),
      account("c", "abstains"),
      account("d", "idle"),
    ];
    expect(headline(list)).toBe("of 4 detectors, 2 judge, 1 abstains, 1 is idle");
    expect(headline([account("a", "learning")])).toBe("of 1 detector, 1 learns");
  });

  it("say why, also where the detector gave no sentence", () => {
    expect(whyOf(account("a", "abstains", "Too noisy."))).toBe("Too noisy.");
    expect(whyOf(account("a", "learning"))).toContain("does not judge yet");
  });
});
