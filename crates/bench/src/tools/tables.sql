-- Five tables that an owner of a database would recognise, each about as large as the others. psql's variables of the
-- tables' names hold the numbers of rows. Repeatable: the random numbers have a seed.
SELECT setseed(0.5) \g /dev/null

-- pgbench's accounts
CREATE TABLE accounts AS
SELECT i AS aid, i / 100000 + 1 AS bid, (random() * 10000 - 5000)::int AS abalance, rpad('', 84) AS filler
FROM generate_series(1, :accounts) i;

-- sales of houses: GUIDs, dates, names
CREATE TABLE price_paid AS
SELECT md5(i::text || 'id')::uuid AS id,
       (50000 + 950000 * random() ^ 3)::int / 50 * 50 AS price,
       date '1995-01-01' + (random() * 10000)::int AS transfer_date,
       chr(65 + (random() * 25)::int) || (1 + (random() * 30)::int)::text || ' ' || (random() * 9)::int
         || chr(65 + (random() * 25)::int) || chr(65 + (random() * 25)::int) AS postcode,
       (array['D', 'S', 'T', 'F', 'O'])[1 + (random() * 4)::int] AS property_type,
       (array['N', 'Y'])[1 + (random() ^ 3)::int] AS new_build,
       (1 + (random() * 200)::int)::text AS paon,
       (array['HIGH STREET', 'STATION ROAD', 'MAIN STREET', 'PARK ROAD', 'CHURCH ROAD', 'CHURCH STREET', 'LONDON ROAD',
              'VICTORIA ROAD', 'GREEN LANE', 'MANOR ROAD', 'QUEENS ROAD', 'NEW ROAD', 'THE CRESCENT', 'GROVE ROAD',
              'MILL LANE'])[1 + (random() * 14)::int] AS street,
       (array['LONDON', 'MANCHESTER', 'BRISTOL', 'BIRMINGHAM', 'NOTTINGHAM', 'LEEDS', 'LIVERPOOL', 'SHEFFIELD', 'LEICESTER',
              'SOUTHAMPTON'])[1 + (random() * 9)::int] AS town,
       (array['GREATER LONDON', 'GREATER MANCHESTER', 'WEST MIDLANDS', 'WEST YORKSHIRE', 'KENT', 'ESSEX',
              'HAMPSHIRE'])[1 + (random() * 6)::int] AS county
FROM generate_series(1, :price_paid) i;

-- line items as in TPC-H: decimals, dates, padded codes, a comment
CREATE TABLE lineitem AS
SELECT (i / 4) * 8 AS l_orderkey,
       (random() * 200000)::int AS l_partkey,
       (random() * 10000)::int AS l_suppkey,
       i % 4 + 1 AS l_linenumber,
       (1 + random() * 49)::int::numeric(15, 2) AS l_quantity,
       (900 + random() * 104000)::numeric(15, 2) AS l_extendedprice,
       ((random() * 10)::int / 100.0)::numeric(15, 2) AS l_discount,
       ((random() * 8)::int / 100.0)::numeric(15, 2) AS l_tax,
       (array['R', 'A', 'N'])[1 + (random() * 2)::int]::char(1) AS l_returnflag,
       (array['O', 'F'])[1 + random()::int]::char(1) AS l_linestatus,
       date '1992-01-01' + (random() * 2500)::int AS l_shipdate,
       date '1992-02-01' + (random() * 2500)::int AS l_commitdate,
       (array['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'])[1 + (random() * 3)::int]::char(25)
         AS l_shipinstruct,
       (array['REG AIR', 'AIR', 'RAIL', 'SHIP', 'TRUCK', 'MAIL', 'FOB'])[1 + (random() * 6)::int]::char(10) AS l_shipmode,
       (array['carefully', 'quickly', 'furiously', 'slyly', 'blithely'])[1 + (random() * 4)::int] || ' '
         || (array['final', 'regular', 'ironic', 'express', 'pending'])[1 + (random() * 4)::int] || ' '
         || (array['deposits', 'requests', 'packages', 'accounts', 'theodolites'])[1 + (random() * 4)::int] AS l_comment
FROM generate_series(1, :lineitem) i;

-- a log of events in jsonb
CREATE TABLE events AS
SELECT i AS id,
       timestamptz '2026-01-01' + i * interval '0.37 s' AS at,
       (random() ^ 4 * 5000)::int AS host,
       jsonb_build_object(
         'level', (array['info', 'warn', 'error', 'debug'])[1 + (random() ^ 3 * 3)::int],
         'latency_ms', (random() ^ 5 * 9000)::int,
         'path', '/api/v1/' || (array['users', 'orders', 'items', 'search'])[1 + (random() * 3)::int] || '/'
           || (random() * 100000)::int,
         'session', md5((i / 20)::text)) AS payload
FROM generate_series(1, :events) i;

-- real text: what the machine's packages say about themselves
CREATE TABLE articles AS
WITH paragraphs AS MATERIALIZED (
  SELECT body, n
  FROM regexp_split_to_table(pg_read_file('/var/lib/dpkg/status'), E'\n\n') WITH ORDINALITY AS t(body, n))
SELECT copy::bigint * 1000000 + n AS id, copy, left(body, 1900) AS body
FROM generate_series(1, 1000000) copy, paragraphs
LIMIT :articles;

VACUUM (FREEZE, ANALYZE);
