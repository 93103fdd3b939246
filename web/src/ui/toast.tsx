/** Short confirmations of actions that succeeded. Errors are shown beside the failed action. */
import { Toast as Radix } from "radix-ui";
import { createContext, type ReactNode, useCallback, useContext, useState } from "react";
import { Glyph } from "./glyph";

const Context = createContext<(text: string) => void>(() => {});
export const useToast = () => useContext(Context);

export function ToastProvider({ children }: { children: ReactNode }) {
  const [items, setItems] = useState<{ id: number; text: string }[]>([]);
  const say = useCallback(
    (text: string) => setItems((old) => [...old.slice(-2), { id: Date.now(), text }]),
    [],
  );
  const drop = (id: number) => setItems((old) => old.filter((item) => item.id !== id));
  return (
    <Context value={say}>
      <Radix.Provider duration={3500} swipeDirection="right">
        {children}
        {items.map((item) => (
          <Radix.Root
            key={item.id}
            onOpenChange={(open) => !open && drop(item.id)}
            className="flex animate-appear items-center gap-2 rounded-lg border border-line bg-raised px-3 py-2 text-ink text-sm shadow-pop"
          >
            <Glyph name="check" tone="healthy" />
            <Radix.Description>{item.text}</Radix.Description>
          </Radix.Root>
        ))}
        <Radix.Viewport className="fixed right-4 bottom-4 z-50 flex w-80 flex-col gap-2 outline-none" />
      </Radix.Provider>
    </Context>
  );
}
