/** A box that the pointer draws: press, drag, release. A press without a drag stays a click. */
import { type MouseEvent, type PointerEvent, useRef, useState } from "react";
import type { Box } from "./heat-find";

const DRAG = 5; // pixels; a hand that clicks moves less

export interface BoxSelect {
  /** The box while it is drawn, in pixels of the element. */
  box: Box | null;
  handlers: {
    onPointerDown: (event: PointerEvent) => void;
    onPointerMove: (event: PointerEvent) => void;
    onPointerUp: (event: PointerEvent) => void;
    onPointerCancel: () => void;
    /** Keep the click at the end of a drag from the map. */
    onClickCapture: (event: MouseEvent) => void;
  };
}

/** Call `onBox` with each box; `extend` is whether a modifier key was pressed. */
export function useBoxSelect(onBox: (box: Box, extend: boolean) => void): BoxSelect {
  const [box, setBox] = useState<Box | null>(null);
  const start = useRef<{ x: number; y: number } | null>(null);
  const dragged = useRef(false);

  const pointOf = (event: PointerEvent) => {
    const frame = event.currentTarget.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };

  return {
    box,
    handlers: {
      onPointerDown(event) {
        dragged.current = false;
        // A finger scrolls the page.
        if (event.pointerType !== "touch" && event.button === 0) start.current = pointOf(event);
      },
      onPointerMove(event) {
        const from = start.current;
        if (!from) return;
        const to = pointOf(event);
        if (!dragged.current) {
          if (Math.hypot(to.x - from.x, to.y - from.y) < DRAG) return;
          dragged.current = true;
          event.currentTarget.setPointerCapture(event.pointerId);
        }
        setBox({
          left: Math.min(from.x, to.x),
          top: Math.min(from.y, to.y),
          right: Math.max(from.x, to.x),
          bottom: Math.max(from.y, to.y),
        });
      },
      onPointerUp(event) {
        start.current = null;
        if (box) onBox(box, event.shiftKey || event.ctrlKey || event.metaKey);
        setBox(null);
      },
      onPointerCancel() {
        start.current = null;
        setBox(null);
      },
      onClickCapture(event) {
        if (dragged.current) event.stopPropagation();
        dragged.current = false;
      },
    },
  };
}
