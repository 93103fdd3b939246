import { describe, expect, it } from "vitest";
import type { NotificationRoute } from "@/api/types";
import { conditionsOf, timingOf } from "./model";

const route: NotificationRoute = {
  name: "all",
  receivers: ["oncall"],
  min_severity: "warning",
  conditions: ["rack r1*"],
  hours: "Mon-Fri 09:00-18:00",
  timezone: "Europe/Berlin",
  group_by: ["rack", "kind"],
  repeat_minutes: 240,
  escalate_minutes: 15,
  escalate_to: ["lead"],
  proceeds: false,
};

describe("a route in words", () => {
  it("says when it matches", () => {
    expect(conditionsOf(route)).toEqual([
      "severity warning or more",
      "rack r1*",
      "Mon-Fri 09:00-18:00 Europe/Berlin",
    ]);
    expect(conditionsOf({ ...route, hours: null, conditions: [] })).toEqual(["severity warning or more"]);
  });

  it("says what follows the first message", () => {
    expect(timingOf(route)).toEqual([
      "grouped by rack and kind",
      "repeated every 4 h",
      "to lead after 15 min without acknowledgement",
    ]);
    expect(timingOf({ ...route, group_by: ["incident"], repeat_minutes: 0, escalate_minutes: 0 })).toEqual([
      "each incident alone",
    ]);
  });
});
