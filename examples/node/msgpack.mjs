// MessagePack, as much of it as the wire of Agent OS needs: nil, booleans, integers, floats, text, bytes, arrays, maps.
// Bytes are Uint8Array. Integers beyond 2^53 come back as BigInt. No extension types: the wire has none.

const text = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function encode(value) {
  const parts = [];
  write(value, parts);
  return Buffer.concat(parts);
}

function write(value, parts) {
  if (value === null || value === undefined) parts.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "number") writeNumber(value, parts);
  else if (typeof value === "bigint") parts.push(sized(value < 0n ? 0xd3 : 0xcf, 8, (b) => (value < 0n ? b.writeBigInt64BE(value, 1) : b.writeBigUInt64BE(value, 1))));
  else if (typeof value === "string") {
    const data = text.encode(value);
    if (data.length < 32) parts.push(Buffer.of(0xa0 | data.length));
    else parts.push(length(data.length, [0xd9, 0xda, 0xdb]));
    parts.push(data);
  } else if (value instanceof Uint8Array) parts.push(length(value.length, [0xc4, 0xc5, 0xc6]), value);
  else if (Array.isArray(value)) {
    parts.push(value.length < 16 ? Buffer.of(0x90 | value.length) : length(value.length, [0, 0xdc, 0xdd]));
    for (const item of value) write(item, parts);
  } else {
    const entries = Object.entries(value);
    parts.push(entries.length < 16 ? Buffer.of(0x80 | entries.length) : length(entries.length, [0, 0xde, 0xdf]));
    for (const [key, item] of entries) {
      write(key, parts);
      write(item, parts);
    }
  }
}

function writeNumber(value, parts) {
  if (!Number.isSafeInteger(value)) parts.push(sized(0xcb, 8, (b) => b.writeDoubleBE(value, 1)));
  else if (value >= 0 && value < 128) parts.push(Buffer.of(value));
  else if (value < 0 && value >= -32) parts.push(Buffer.of(256 + value));
  else if (value >= 0 && value < 2 ** 32) parts.push(sized(0xce, 4, (b) => b.writeUInt32BE(value, 1)));
  else write(BigInt(value), parts);
}

function sized(tag, bytes, fill) {
  const buffer = Buffer.alloc(1 + bytes);
  buffer[0] = tag;
  fill(buffer);
  return buffer;
}

// A length behind the smallest of three tags that can hold it; a tag of 0 means that there is none for 8 bits.
function length(size, [tag8, tag16, tag32]) {
  if (size < 256 && tag8) return Buffer.of(tag8, size);
  if (size < 65536) return sized(tag16, 2, (b) => b.writeUInt16BE(size, 1));
  return sized(tag32, 4, (b) => b.writeUInt32BE(size, 1));
}

export function decode(buffer) {
  const reader = { buffer, at: 0 };
  const value = read(reader);
  if (reader.at !== buffer.length) throw new Error("something follows the value");
  return value;
}

const take = (reader, size) => {
  if (reader.at + size > reader.buffer.length) throw new Error("the value is cut off");
  const part = reader.buffer.subarray(reader.at, reader.at + size);
  reader.at += size;
  return part;
};
const unsigned = (reader, size) => take(reader, size).readUIntBE(0, size);
const safe = (big) => (big >= Number.MIN_SAFE_INTEGER && big <= Number.MAX_SAFE_INTEGER ? Number(big) : big);
const string = (reader, size) => strict.decode(take(reader, size));
const array = (reader, size) => Array.from({ length: size }, () => read(reader));
const map = (reader, size) => {
  const entries = Array.from({ length: size }, () => [read(reader), read(reader)]);
  return Object.fromEntries(entries);
};

const BY_TAG = {
  0xc0: () => null,
  0xc2: () => false,
  0xc3: () => true,
  0xc4: (r) => Uint8Array.from(take(r, unsigned(r, 1))),
  0xc5: (r) => Uint8Array.from(take(r, unsigned(r, 2))),
  0xc6: (r) => Uint8Array.from(take(r, unsigned(r, 4))),
  0xca: (r) => take(r, 4).readFloatBE(0),
  0xcb: (r) => take(r, 8).readDoubleBE(0),
  0xcc: (r) => unsigned(r, 1),
  0xcd: (r) => unsigned(r, 2),
  0xce: (r) => unsigned(r, 4),
  0xcf: (r) => safe(take(r, 8).readBigUInt64BE(0)),
  0xd0: (r) => take(r, 1).readInt8(0),
  0xd1: (r) => take(r, 2).readInt16BE(0),
  0xd2: (r) => take(r, 4).readInt32BE(0),
  0xd3: (r) => safe(take(r, 8).readBigInt64BE(0)),
  0xd9: (r) => string(r, unsigned(r, 1)),
  0xda: (r) => string(r, unsigned(r, 2)),
  0xdb: (r) => string(r, unsigned(r, 4)),
  0xdc: (r) => array(r, unsigned(r, 2)),
  0xdd: (r) => array(r, unsigned(r, 4)),
  0xde: (r) => map(r, unsigned(r, 2)),
  0xdf: (r) => map(r, unsigned(r, 4)),
};

function read(reader) {
  const tag = take(reader, 1)[0];
  if (tag < 0x80) return tag;
  if (tag < 0x90) return map(reader, tag & 0x0f);
  if (tag < 0xa0) return array(reader, tag & 0x0f);
  if (tag < 0xc0) return string(reader, tag & 0x1f);
  if (tag >= 0xe0) return tag - 256;
  const one = BY_TAG[tag];
  if (!one) throw new Error(`no value begins with ${tag}`);
  return one(reader);
}
