/** Calls of the same moment as one call of `load`, which answers in the order of its keys. */
export function batched<K, V>(most: number, load: (keys: K[]) => Promise<V[]>): (key: K) => Promise<V> {
  let waiting: { key: K; resolve: (value: V) => void; reject: (reason: unknown) => void }[] = [];

  async function send() {
    const batch = waiting;
    waiting = [];
    for (let first = 0; first < batch.length; first += most) {
      const part = batch.slice(first, first + most);
      try {
        const values = await load(part.map((one) => one.key));
        part.forEach((one, index) => {
          one.resolve(values[index] as V);
        });
      } catch (error) {
        for (const one of part) one.reject(error);
      }
    }
  }

  return (key) =>
    new Promise((resolve, reject) => {
      if (waiting.length === 0) setTimeout(() => void send(), 0);
      waiting.push({ key, resolve, reject });
    });
}
